"""The API keys that a gateway knows. They are read again when they have changed, at most once a second."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers

from gateway.errors import Unauthorized, Unavailable
from ops.runtime.api_keys import Key, digest_of
from ops.runtime.key_store import KeyStore
from proto.rpc import BusAway

REFRESH_SECONDS = 1.0
"""Time for which a key that was revoked may still be accepted."""
LOOK_SECONDS = 2.0
"""Time that reading the keys may take."""

logger = logging.getLogger(__name__)


def authorization_in(headers: Headers) -> str:
    """The header `Authorization`. Anthropic's clients send the key as `x-api-key`, Azure's as `api-key`."""
    given = headers.get("x-api-key") or headers.get("api-key")
    return headers.get("authorization", "") or (f"Bearer {given}" if given else "")


class KeyRing:
    """Looks keys up. While Redis is away, those that were known before are accepted."""

    def __init__(
        self,
        given: Mapping[str, Key] | None = None,
        store: KeyStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`given`: keys of the configuration, by digest. `store`: has more of them. `clock`: in seconds."""
        self._given = dict(given or {})
        self._stored: dict[str, Key] = {}
        self._store = store
        self._clock = clock
        self._version: str | None = None
        self._needed = bool(given)
        self._known = store is None
        self._read_at = -float("inf")
        self._reading = asyncio.Lock()

    async def needed(self) -> bool:
        """Whether requests need a key: there are some, or have been.

        Raises `Unavailable` if that is not known.
        """
        await self._refresh()
        if not (self._known or self._needed):
            raise Unavailable("The message queue cannot be reached.")
        return self._needed

    async def find(self, authorization: str) -> tuple[str, Key] | None:
        """The key in the header `Authorization` with its digest; None if requests need no key.

        Raises `Unauthorized` for a key that is missing, unknown or expired, and `Unavailable` as long as the
        keys could never be read.
        """
        scheme, _, secret = authorization.partition(" ")
        return await self.named(digest_of(secret.strip()) if scheme.lower() == "bearer" else "")

    async def named(self, digest: str) -> tuple[str, Key] | None:
        """The key with this digest, and the digest: as `find`. `digest`: empty for none."""
        if not await self.needed():
            return None
        if digest:
            key = self._given.get(digest) or self._stored.get(digest)
            if key is not None and key.expires is not None and key.expires <= time.time():
                raise Unauthorized("The API key has expired.")
            if key is not None:
                return digest, key
        if not self._known:
            raise Unavailable("The message queue cannot be reached.")
        raise Unauthorized("A valid API key is needed: `Authorization: Bearer KEY`.")

    async def _refresh(self) -> None:
        if self._store is None or self._clock() - self._read_at < REFRESH_SECONDS:
            return
        async with self._reading:
            if self._clock() - self._read_at < REFRESH_SECONDS:
                return
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._read(self._store)
            except (BusAway, TimeoutError) as error:
                logger.warning("cannot read the API keys: %s", error or type(error).__name__)
            self._read_at = self._clock()

    async def _read(self, store: KeyStore) -> None:
        version = await store.version()
        if version != self._version:
            self._stored = await store.read() if version is not None else {}
            self._version = version
            # A Redis that has lost its data does not open the deployment.
            self._needed = self._needed or version is not None
        self._known = True
