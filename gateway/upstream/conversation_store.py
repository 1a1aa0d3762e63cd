"""Conversations of OpenAI's Conversations API in Redis, beside the stored responses and within their room.

After the prefix and `responses:` the keys are those of `gateway.upstream.stored_room`, and:

    of:<tenant>:<id>       the conversation as JSON, without its items; it runs out, as the others do
    items:<tenant>:<id>    hash: the items as JSON, by their ids
    order:<tenant>:<id>    sorted set of the items' ids, the first one lowest
"""

import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import TooLarge
from gateway.parsing import parsed
from gateway.upstream.listed import listed
from gateway.upstream.stored_room import COMMON, DELETE, MAX_ITEMS, MAX_RECORD_BYTES, Room, as_json

_ID = re.compile(r"conv_[0-9a-f]{32}")

Json = dict[str, Any]

# ARGV[7] the conversation; then items. Returns -1 if they are too large.
_CREATE = (
    COMMON
    + """
forget()
put(ARGV[7])
if room_for(id, 8) < 0 then
  drop(name)
  return -1
end
append(id, 8)
return 1
"""
)

# ARGV[7] the conversation. Returns 0 if there is none.
_UPDATE = (
    COMMON
    + """
if redis.call('EXISTS', key) == 0 then return 0 end
put(ARGV[7])
return 1
"""
)

# ARGV[7] and so on items. Returns 0 if there is no conversation, -1 if it would be too large.
_ADD = (
    COMMON
    + """
local more = room_for(id, 7)
if not more then return 0 end
if more < 0 then return -1 end
append(id, 7)
return 1
"""
)

# Returns the texts of all items; nil if there is no conversation.
_ITEMS = (
    COMMON
    + """
if redis.call('EXISTS', key) == 0 then return nil end
local found, items = {}, key_of('items', name)
for place, one in ipairs(redis.call('ZRANGE', key_of('order', name), 0, -1)) do
  found[place] = redis.call('HGET', items, one)
end
return found
"""
)

# ARGV[7] and so on ids. Returns those that items have.
_KNOWN = (
    COMMON
    + """
local found = {}
for place = 7, #ARGV do
  if redis.call('HEXISTS', key_of('items', name), ARGV[place]) == 1 then table.insert(found, ARGV[place]) end
end
return found
"""
)

# ARGV[7] an item's id. Returns 0 if there is none.
_REMOVE = (
    COMMON
    + """
local items = key_of('items', name)
local text = redis.call('HGET', items, ARGV[7])
if not text then return 0 end
redis.call('HDEL', items, ARGV[7])
redis.call('ZREM', key_of('order', name), ARGV[7])
grow(name, -(#text + 2 * #ARGV[7] + 128))
touch(name)
return 1
"""
)


@dataclass(frozen=True)
class Added:
    """Items that are added to a conversation. One whose id it has stays as it is."""

    conversation: str = ""
    items: Sequence[Json] = ()

    @property
    def arguments(self) -> list[str | int | bytes]:
        """For scripts: the conversation, then pairs of an id and a text."""
        return [self.conversation, *_pairs(self.items)]


NOTHING_ADDED = Added()


class ConversationStore:
    """The conversations of one deployment. Methods raise `Unavailable` if Redis cannot be reached."""

    def __init__(self, room: Room) -> None:
        self._room = room

    async def create(self, tenant: str, conversation: Json, items: Sequence[Json]) -> None:
        """Store a new one. Raises `TooLarge`, too."""
        text = as_json(conversation)
        if await self._room.script(_CREATE, tenant, conversation["id"], text, *_pairs(items)) < 0:
            raise conversation_too_large()

    async def get(self, tenant: str, conversation_id: str) -> Json | None:
        """One of this tenant's, without its items; None if there is none."""
        if not _ID.fullmatch(conversation_id):
            return None
        text = await self._room.run("GET", self._key("of", tenant, conversation_id))
        found: Json | None = None if text is None else json.loads(text)
        return found

    async def update(self, tenant: str, conversation: Json) -> bool:
        """Put a conversation in place of itself. Whether there is one."""
        return bool(await self._room.script(_UPDATE, tenant, conversation["id"], as_json(conversation)))

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation of this tenant's. Whether there was one."""
        if not _ID.fullmatch(conversation_id):
            return False
        return bool(await self._room.script(DELETE, tenant, conversation_id))

    async def add(self, tenant: str, added: Added) -> bool:
        """Add items. Whether there is such a conversation. Raises `TooLarge`, too."""
        found: int = await self._room.script(_ADD, tenant, added.conversation, *added.arguments[1:])
        if found < 0:
            raise conversation_too_large()
        return bool(found)

    async def items(self, tenant: str, conversation_id: str) -> Sequence[bytes] | None:
        """All items as JSON, the first one first; None if there is no such conversation."""
        if not _ID.fullmatch(conversation_id):
            return None
        async with self._room.turns.turn(tenant):
            texts: Sequence[bytes] | None = await self._room.script(_ITEMS, tenant, conversation_id)
        return texts

    def ids(
        self, tenant: str, conversation_id: str, after: str | None = None, newest_first: bool = False
    ) -> AsyncGenerator[str, None]:
        """The ids of a conversation's items: see `listed`."""
        return listed(self._room.run, self._key("order", tenant, conversation_id), after, newest_first)

    async def known(self, tenant: str, conversation_id: str, ids: Sequence[str]) -> set[str]:
        """Those of these ids that items of the conversation have."""
        return {one.decode() for one in await self._room.script(_KNOWN, tenant, conversation_id, *ids)}

    async def item(
        self, tenant: str, conversation_id: str, item_id: str, hold: Callable[[int], None] = lambda _: None
    ) -> Json | None:
        """An item; None if there is none. `hold`: as for a response."""
        if not _ID.fullmatch(conversation_id):
            return None
        async with self._room.turns.turn(tenant):
            text = await self._room.run("HGET", self._key("items", tenant, conversation_id), item_id)
            if text is None:
                return None
            hold(len(text))
        item: Json = await parsed(tenant, len(text), lambda: json.loads(text))
        return item

    async def remove(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        """Delete an item. Whether there was one."""
        if not _ID.fullmatch(conversation_id):
            return False
        return bool(await self._room.script(_REMOVE, tenant, conversation_id, item_id))

    def _key(self, kind: str, tenant: str, conversation_id: str) -> str:
        return f"{self._room.base}{kind}:{tenant}:{conversation_id}"


def conversation_too_large() -> TooLarge:
    """The error of items that do not fit."""
    most = f"{MAX_RECORD_BYTES // 2**20} MiB or {MAX_ITEMS} items"
    return TooLarge(f"The conversation would have more than {most}.", param="conversation")


def _pairs(items: Sequence[Json]) -> list[str | int | bytes]:
    return [part for item in items for part in (item["id"], as_json(item))]
