"""API keys in Redis, where all gateways of a deployment find them.

The hash `<prefix>keys` has a field for each key: its digest, with what is known of it as JSON. The field
`version` has another value after each change. It stays when the last key is revoked: a deployment that has
had keys wants keys.
"""

import logging
import secrets
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from ops.runtime.api_keys import Key
from proto.rpc.line import Line

VERSION = "version"

log = logging.getLogger(__name__)


class KeyStore:
    """The keys of one deployment. Methods raise `BusAway` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str) -> None:
        self._line = line
        self._hash = f"{prefix}keys"

    async def version(self) -> str | None:
        """Changes with the keys; None if there has never been one."""
        (found,) = await self._line.execute(("HGET", self._hash, VERSION))
        return None if found is None else str(found.decode(errors="replace"))

    async def read(self) -> dict[str, Key]:
        """All keys by digest. One that cannot be read is logged and left out."""
        keys = {}
        for digest, record in (await self.records()).items():
            try:
                keys[digest] = Key.model_validate_json(record)
            except ValidationError as error:
                log.error("the API key %.12s cannot be read: %s", digest, error.errors()[0]["msg"])
        return keys

    async def records(self) -> dict[str, str]:
        """What is known of each key, by digest, as `restore` takes it."""
        (found,) = await self._line.execute(("HGETALL", self._hash))
        texts = [one.decode(errors="replace") for one in found]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        fields.pop(VERSION, None)
        return fields

    async def restore(self, records: Mapping[str, str]) -> None:
        """Add keys. `records`: what is known of each, by digest, as the method `records` returns it."""
        fields = [part for item in records.items() for part in item]
        await self._line.execute(("HSET", self._hash, VERSION, secrets.token_hex(8), *fields))

    async def add(self, digest: str, key: Key) -> None:
        """Add a key, or replace what is known of it."""
        await self.restore({digest: key.model_dump_json(exclude_unset=True)})

    async def revoke(self, digests: Iterable[str]) -> None:
        """Remove the keys with these digests. A digest without a key is passed over."""
        await self._line.execute(
            ("MULTI",),
            ("HDEL", self._hash, *digests),
            ("HSET", self._hash, VERSION, secrets.token_hex(8)),
            ("EXEC",),
        )

    def close(self) -> None:
        self._line.close()
