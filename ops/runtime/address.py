"""The address that a gateway listens on, and the URL at which it is reached."""

import socket

ANY = ("0.0.0.0", "::")
"""Hosts that stand for all addresses of a machine."""


def http_url(host: str, port: int) -> str:
    """The URL of a server that listens there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_from_here(host: str, port: int) -> str:
    """The host at which this machine reaches a server that listens there."""
    return http_url("127.0.0.1" if host in ANY else host, port)


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket; `::` is all addresses, those of IPv4 among them. Raises `OSError`."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=backlog)
    both = host in ANY and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=both)
