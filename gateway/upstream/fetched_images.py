"""Fetches images whose addresses a request names."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import quote, urljoin, urlsplit

import httpcore2

from gateway.errors import GatewayError
from gateway.followers import Followers
from gateway.upstream.image_hosts import CheckedBackend, ImageHosts
from ops.runtime.image_store import MAX_IMAGE_BYTES

SECONDS = 15.0
"""Time in which all images of a request must have come."""
CONNECT_SECONDS = 5.0
AT_ONCE = 4
"""Images of one request that are fetched at once."""
MAX_REDIRECTS = 3
MAX_FETCHING = 32
"""Requests whose images are fetched at once. A tenant may have as many as it leaves free."""
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = [("User-Agent", "Quire"), ("Accept", "image/*"), ("Accept-Encoding", "identity")]
_TIMES = {"connect": CONNECT_SECONDS, "read": SECONDS, "write": SECONDS}
_HOST = re.compile(r"[a-z0-9_.:-]+")
_UNRESERVED = "/%:=&?~#+!$,;'@()*[]"


class NotFetched(Exception):
    """An image was not fetched."""

    def __init__(self, reason: str) -> None:
        """`reason`: why, for who named it."""
        super().__init__(reason)
        self.reason = reason


Found = Mapping[str, bytes | NotFetched]
"""Files by their addresses, or why they were not fetched."""


class ImageFetcher:
    """Fetches images from the hosts that it may."""

    def __init__(self, hosts: ImageHosts) -> None:
        self._hosts = hosts
        self._waiting = Followers(MAX_FETCHING, "Too many requests wait for images from other hosts.")
        # No connection is kept: a name is looked up, and its addresses are checked, each time.
        self._pool = httpcore2.AsyncConnectionPool(
            max_connections=None,
            max_keepalive_connections=0,
            network_backend=CheckedBackend(hosts),
            ssl_context=httpcore2.default_ssl_context(),  # to read all certificates takes 30 ms
        )

    async def fetch_all(self, urls: Sequence[str], tenant: str, count: Callable[[int], None]) -> Found:
        """What stands at each address. `count` is called with the number of bytes that come. The last ones of
        `urls` come first: earlier ones in a conversation may be gone, and take all the time.

        Raises `Overloaded` if too many requests wait for images, and whatever `GatewayError` `count` raises.
        """
        end = asyncio.get_running_loop().time() + SECONDS
        places = asyncio.Semaphore(AT_ONCE)
        found: dict[str, bytes | NotFetched] = {}

        async def fetch(url: str) -> None:
            async with places:
                try:
                    found[url] = await self._fetch(url, end, count)
                except NotFetched as why:
                    found[url] = why

        with self._waiting.place(tenant):
            try:
                async with asyncio.TaskGroup() as tasks:
                    for url in reversed(urls):
                        tasks.create_task(fetch(url))
            except* GatewayError as errors:
                raise errors.exceptions[0] from None
        return found

    async def _fetch(self, url: str, end: float, count: Callable[[int], None]) -> bytes:
        try:
            async with asyncio.timeout_at(end):
                for _ in range(MAX_REDIRECTS + 1):
                    found = await self._get(url, count)
                    if isinstance(found, bytes):
                        return found
                    url = urljoin(url, found)
        except (ValueError, TypeError):  # also of what no library expects in a redirect, or in a name
            raise NotFetched("it is no address") from None
        except (TimeoutError, httpcore2.TimeoutException):
            raise NotFetched("it does not come in time") from None
        except httpcore2.ConnectError:
            raise NotFetched("its host cannot be reached") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError):
            raise NotFetched("the connection to its host broke off") from None
        raise NotFetched(f"it leads on to other addresses more than {MAX_REDIRECTS} times")

    async def _get(self, url: str, count: Callable[[int], None]) -> bytes | str:
        """The bytes at an address, or the address to which it leads."""
        target = self._target(url)
        headers = _HEADERS if b":" not in target.host else [*_HEADERS, ("Host", urlsplit(url).netloc)]
        async with self._pool.stream(
            "GET", target, headers=headers, extensions={"timeout": _TIMES}
        ) as answer:
            sent = {name.lower(): value for name, value in answer.headers}
            if answer.status in _REDIRECTS and b"location" in sent:
                return _text(sent[b"location"])
            if answer.status != 200:
                raise NotFetched(f"its host answers with {answer.status}")
            if sent.get(b"content-encoding", b"identity") != b"identity":
                raise NotFetched("its host sends it in an encoding that was not asked for")
            image = bytearray()
            async with aclosing(answer.aiter_stream()) as pieces:
                async for piece in pieces:
                    count(len(piece))
                    image += piece
                    if len(image) > MAX_IMAGE_BYTES:
                        raise NotFetched(f"it has more than {MAX_IMAGE_BYTES // 2**20} MiB")
            return bytes(image)

    def _target(self, url: str) -> httpcore2.URL:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise NotFetched("it is no address") from None
        if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or parts.username is not None:
            raise NotFetched("it is no http or https address of a host alone")
        if not self._hosts.allow(host, port):
            raise NotFetched("this server fetches nothing from its host")
        path = quote(parts.path or "/", safe=_UNRESERVED)
        if parts.query:
            path += "?" + quote(parts.query, safe=_UNRESERVED)
        return httpcore2.URL(scheme=parts.scheme, host=host, port=parts.port, target=path)


def _text(location: bytes) -> str:
    try:
        return location.decode()
    except UnicodeDecodeError:
        return location.decode("latin-1")
