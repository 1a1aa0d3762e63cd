"""Who owns the tasks that live as long as their process: one that ends unasked is the end of its owner.

A task that failed and that nobody waits for would leave a process that looks alive, with its lease renewed,
and does only a part of its work. An owner is a task group whose body is told by `ended`, and not by being
cancelled: to be cancelled is to be asked to stop, after which a service lets its calls go on for a while.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Self

from proto.rpc.errors import TaskEnded


class Owner:
    """Owns tasks until its block is left, which cancels them. To be made within the event loop."""

    def __init__(self, lost: Callable[[BaseException], None] | None = None) -> None:
        """`lost`: is called with its error when the first task has ended unasked."""
        self._lost = lost
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error: BaseException | None = None
        self._over = asyncio.Event()
        self._leaving = False

    def own(self, work: Coroutine[Any, Any, Any], name: str, may_end: bool = False) -> "asyncio.Task[Any]":
        """Run `work` as a task. `name`: what it does, for the log. `may_end`: only an error is unasked."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_end if not may_end else self._on_end_or_error)
        return task

    async def ended(self) -> NoReturn:
        """Wait until a task has ended unasked. Raises its error, or `TaskEnded` if it has none."""
        await self._over.wait()
        assert self._error is not None
        raise self._error

    async def close(self) -> None:
        """Cancel all tasks, and return when they have ended."""
        self._leaving = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _on_end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._leaving:
            self.end(error or TaskEnded(f"{task.get_name()} has ended unasked"))

    def _on_end_or_error(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._leaving:
            self.end(error)

    def end(self, error: BaseException) -> None:
        """As if a task had ended with an error. The first one counts."""
        if self._error is None:
            self._error = error
            self._over.set()
            if self._lost is not None:
                self._lost(error)
