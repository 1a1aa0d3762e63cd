"""The address that a gateway listens on, and the URL at which it is reached."""

import errno
import ipaddress
import socket

from ops.runtime.errors import StartError, TransientStartError

ANY = ("0.0.0.0", "::")
"""Hosts that stand for all addresses of a machine."""


def http_url(host: str, port: int) -> str:
    """The URL of a server that listens there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_from_here(host: str, port: int) -> str:
    """The host at which this machine reaches a server that listens there."""
    return http_url("127.0.0.1" if host in ANY else host, port)


def is_loopback(host: str) -> bool:
    """Whether a server that listens there is reached from this machine alone. False for an unknown name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def listen(host: str, port: int, backlog: int, share: bool = False) -> socket.socket:
    """A listening socket; `::` is all addresses, those of IPv4 among them. Raises `OSError`.

    `share`: other processes of this user may listen there as well, if they also say so (SO_REUSEPORT).
    """
    bound = _bound(host, port, share)
    bound.listen(backlog)
    return bound


def check_free(host: str, port: int) -> None:
    """Raise `OSError` if a process listens there, or nobody can."""
    _bound(host, port, share=False).close()


def cannot_listen(line: str, error: OSError | OverflowError) -> StartError:
    """What keeps a process from starting that cannot listen. It may pass, as until an address is up, or the
    process that has it ends; but not if the address is forbidden, or none."""
    lasts = not isinstance(error, OSError) or error.errno in (errno.EACCES, errno.EPERM)
    return StartError(line) if lasts else TransientStartError(line)


def _bound(host: str, port: int, share: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share and hasattr(socket, "SO_REUSEPORT"):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if bound.family == socket.AF_INET6:
            one_family = host not in ANY or not socket.has_dualstack_ipv6()
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, one_family)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
