"""Several streams read as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")

BUFFERED_ITEMS = 64


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """The items of all streams as they come, each with its stream's index.

    The first stream to fail fails the whole. All streams are closed at the end, however it comes.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for each in only:
                yield 0, each
        return
    queue: asyncio.Queue[tuple[int, Item | _End]] = asyncio.Queue(BUFFERED_ITEMS)
    tasks = [asyncio.ensure_future(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            index, item = await queue.get()
            if not isinstance(item, _End):
                yield index, item
            elif item.error is None:
                running -= 1
            else:
                raise item.error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _End:
    def __init__(self, error: Exception | None) -> None:
        self.error = error


async def _pump(
    index: int, stream: AsyncGenerator[Item, None], queue: "asyncio.Queue[tuple[int, Item | _End]]"
) -> None:
    failure = None
    async with aclosing(stream):
        try:
            async for item in stream:
                await queue.put((index, item))
        except Exception as error:  # whatever it is, the reader raises it
            failure = error
    await queue.put((index, _End(failure)))
