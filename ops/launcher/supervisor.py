"""Keeps the processes of a deployment alive, and ends them in order."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

from ops.runtime.child import Child, Spec, describe_end
from ops.runtime.errors import LaunchError

RAPID_SECONDS = 10.0
"""Seconds. A process that ends sooner after its start has failed rapidly."""
GOODBYE_SECONDS = 3.0
"""Seconds that a process may take to end once its calls have ended."""
LOGS_SECONDS = 5.0
"""Time between two looks at the sizes of the logs."""
START_LIMIT = 3
"""Ends of one process while the deployment starts, after which the whole deployment is given up."""
STATUS_HOPELESS = 2
"""Exit status of a process for which a second try would not help, such as one with wrong settings."""

Report = Callable[[str], None]
Buried = Callable[[Child, int], Awaitable[None]]


def backoff(failures: int) -> float:
    """Seconds before the next start, by the number of rapid failures in a row: 0, 0.5, 1, 2, … 10."""
    return 0.0 if failures <= 1 else min(10.0, 0.5 * 2.0 ** (failures - 2))


class Supervisor:
    """Runs children and starts again those that end.

    `buried` is awaited with a child that has died and its exit status, before its successor starts;
    `changed` is called with every start.
    """

    def __init__(
        self,
        specs: Iterable[Spec],
        logs: Path,
        report: Report,
        buried: Buried,
        changed: Callable[[], None],
    ) -> None:
        self.children = [Child(spec, logs / f"{spec.name}.log") for spec in specs]
        self._report = report
        self._buried = buried
        self._changed = changed
        self._settled = self._killed = False

    def settle(self) -> None:
        """The deployment is up: from now on no failure makes the supervisor give up."""
        self._settled = True

    @contextlib.asynccontextmanager
    async def running(self, stage: int, grace: float = GOODBYE_SECONDS) -> AsyncIterator[None]:
        """Keep the children of one stage alive while the block runs; end them after it.

        `grace`: seconds that a child may take to end; then it is killed.

        A child that is given up ends the block: `LaunchError`.
        """
        children = [child for child in self.children if child.spec.stage == stage]
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(self._keep_alive(child)) for child in children]
                yield
                for watcher in watchers:
                    watcher.cancel()
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        finally:
            await asyncio.gather(*(child.end(grace) for child in children))

    async def bound_logs(self) -> None:
        """Keep the logs of all children small, until cancelled."""
        while True:
            await asyncio.sleep(LOGS_SECONDS)
            for child in self.children:
                with contextlib.suppress(OSError, RuntimeError):  # the next look will do
                    await asyncio.to_thread(child.bound_log)

    def kill(self) -> None:
        """End everything at once. Nothing is started again."""
        self._killed = True
        for child in self.children:
            child.kill()

    async def _keep_alive(self, child: Child) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            try:
                await child.start()
            except LaunchError as error:
                if not self._settled:
                    raise
                failures += 1
                await self._start_later(str(error), failures)  # memory or processes may be short for a while
                continue
            if self._killed:  # meanwhile
                child.kill()
            self._changed()
            status = await child.wait()
            if self._killed:
                return
            lived = time.monotonic() - started
            rapid = lived < RAPID_SECONDS or not self._settled
            failures = failures + 1 if rapid else 1
            await self._buried(child, status)
            if not self._settled and (failures >= START_LIMIT or status == STATUS_HOPELESS):
                raise LaunchError(
                    f"{child.spec.name} {describe_end(status)} and does not come up. Its last words "
                    f"({child.log}):\n{child.last_words()}"
                )
            await self._start_later(f"{child.spec.name} {describe_end(status)} after {lived:.1f} s", failures)

    async def _start_later(self, reason: str, failures: int) -> None:
        pause = backoff(failures)
        again = f"again in {pause:g} s" if pause else "again at once"
        self._report(f"{reason}; starting it {again}")
        await asyncio.sleep(pause)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
