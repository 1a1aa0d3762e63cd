"""A queue between tasks of one process that has an end."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Items in the order in which they were added, without a bound. One task reads."""

    __slots__ = ("_closed", "_items", "_reader")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._closed = False
        self._reader: asyncio.Future[None] | None = None

    def add(self, item: Item) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._wake()

    def close(self, discard: bool = False) -> None:
        """Nothing more will be added. What was added can still be read, unless it is discarded."""
        self._closed = True
        if discard:
            self._items.clear()
        if self._reader is not None:
            self._wake()

    async def get(self) -> Item | None:
        """The next item; None once the mailbox is closed and empty."""
        while not self._items:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._take()

    def _take(self) -> Item:
        """Take out the first item. Not awaited: every message of every call passes through here."""
        return self._items.popleft()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
