"""Several streams merged into one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")

BUFFERED_ITEMS = 64


def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """The items of all streams as they come.

    The error of the first stream that fails ends the whole. All streams are closed at the end in any case.
    """
    return streams[0] if len(streams) == 1 else _merged(streams)


async def _merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    queue: asyncio.Queue[Item | _End] = asyncio.Queue(BUFFERED_ITEMS)
    tasks = []
    try:
        for stream in streams:
            tasks.append(asyncio.ensure_future(_pump(stream, queue)))
            await asyncio.sleep(0)  # starting a stream takes time, in which others wait
        running = len(tasks)
        while running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
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


async def _pump(stream: AsyncGenerator[Item, None], queue: "asyncio.Queue[Item | _End]") -> None:
    failure = None
    async with aclosing(stream):
        try:
            async for item in stream:
                await queue.put(item)
        except Exception as error:  # of any kind: the reader raises it
            failure = error
    await queue.put(_End(failure))
