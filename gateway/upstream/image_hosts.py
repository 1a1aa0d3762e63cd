"""The hosts from which images are fetched, and connections to them.

Who sends a request chooses the address, and the gateway stands where not everybody may look: so a name counts
for nothing but the addresses that it has when the connection is made, and these must be public ones, unless
the operator has named the host with its port.
"""

import asyncio
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpcore2

_NAME = r"(\*|(\*\.)?[\w-]+(\.[\w-]+)*|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?"
PATTERN = rf"^({_NAME}(\s*,\s*{_NAME})*)?$"
"""Of a list of hosts."""
_PORTS = (80, 443)
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that stand for IPv4 addresses (NAT64)."""
_OF_CLOUDS = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))
"""Where clouds tell their machines secrets. Some of Python's tables have them as public."""
FIRST_SECONDS = 1.0
"""Time to connect to an address of a name behind which there are more."""
_LOOKUPS = 32
"""Names that are looked up at once. In threads of their own: a name may take long, and others would wait."""


@dataclass(frozen=True)
class _Host:
    """One entry: a name, or what a name ends with, and a port."""

    name: str
    below: bool
    port: int | None

    def has(self, host: str, port: int) -> bool:
        if port not in (_PORTS if self.port is None else (self.port,)):
            return False
        return host.endswith(self.name) if self.below else host == self.name


class ImageHosts:
    """Hosts as an operator lists them: `example.com`, `*.example.com` for every name below it, `*` for any;
    at the usual ports, or at the one behind a colon."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hosts = [_host(name) for name in names]

    def allow(self, host: str, port: int) -> bool:
        """Whether images are fetched from there."""
        return any(each.has(host, port) for each in self._hosts)

    def may_be_private(self, host: str, port: int) -> bool:
        """Whether the operator has named just this, and so knows what is there."""
        return any(each.has(host, port) and not each.below and each.port is not None for each in self._hosts)


def _host(text: str) -> _Host:
    found = re.fullmatch(r"(\*?)(.*?)(?::(\d+))?", text.strip().lower())
    assert found is not None
    star, name, port = found.groups()
    labels = [label.encode("idna").decode() for label in name.strip("[]").split(".")]
    return _Host(".".join(labels), bool(star), int(port) if port else None)


def is_public(text: str) -> bool:
    """Whether an IP address is one of the Internet's, and of one machine."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if address.is_site_local:
            return False
    if any(address in network for network in _OF_CLOUDS):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


class CheckedBackend(httpcore2.AnyIOBackend):
    """Connects to a host at those of its addresses that are allowed. A name is looked up once for each
    connection, so that the addresses that were checked are the ones that are connected to."""

    def __init__(self, hosts: ImageHosts) -> None:
        self._hosts = hosts
        self._lookups = ThreadPoolExecutor(_LOOKUPS, "lookup")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises `httpcore2.ConnectError`. Nobody is told more: not what there is in this network."""
        addresses = await self._addresses(host, port)
        if not self._hosts.may_be_private(host, port):
            addresses = [each for each in addresses if is_public(each)]
        for place, address in enumerate(addresses, 1):
            seconds = timeout if place == len(addresses) or timeout is None else min(timeout, FIRST_SECONDS)
            try:
                return await super().connect_tcp(address, port, seconds, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                pass  # the next one may be there
        raise httpcore2.ConnectError("none of its addresses can be reached")

    async def _addresses(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(str(error)) from None
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
