"""Whose request enters a stream next.

The services behind the gateway take calls in order of arrival, up to what they can hold. So the gateway
makes no more calls than that, and shares them out among tenants, and within a tenant among its users:

- A request starts if its tenant holds less than what is free (dynamic thresholds, after Choudhury and Hahne,
  Dynamic Queue Length Thresholds for Shared-Memory Packet Switches, 1998). A tenant alone holds up to a half.
  The more tenants there are, the less each may hold, so that something is free for a tenant that comes.
- A user counts as well: in this comparison an eighth of what the request's user holds is added to what its
  tenant holds. So one user of a tenant cannot hold all that the tenant may hold.
- An answer may have no end, so the first tenants could keep all places for ever. So each has a share:
  the number of places, divided by one more than the number of tenants. By the first rule they would all come
  to hold that much. A request of a tenant below its share starts at once. If no place is free, a call is
  paused for it: one of the tenant that holds most, if that is more than its share. A paused call goes on with
  what it has as soon as a place is free.
- Other requests wait. Tenants have their turns one after the other, and so have the users of a tenant.
- The room to wait in is shared out by the first rule. A request that finds none is refused at once, unless
  nothing of its tenant waits.

What is shared are calls, and bytes of what is sent. A tenant's first request needs no room for its bytes.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from opentelemetry import trace

from gateway.errors import GatewayError, Overloaded, TimedOut
from gateway.upstream.places import ONE_CALL, Asker, Load, Pool
from ops.runtime.telemetry import within

MAX_BYTES = 128 * 2**20
"""Bytes of requests that are under way for one model at once, and again bytes that wait."""
MAX_WAITING = 4096
"""Calls that wait for one model at once."""
PACE_WINDOW = 64
"""Number of requests whose ends give the rate at which places become free."""
MAX_RETRY_SECONDS = 600


class Call(Protocol):
    """A call that holds a place, and can do without it for a while."""

    def pause(self, turn: "asyncio.Future[None]") -> None:
        """Stop at once, and go on when `turn` is done. Its exception is the request's."""


@dataclass(frozen=True, eq=False)
class _Waiter:
    """A request that has not started, or a call that is paused."""

    asker: Asker
    load: Load
    turn: "asyncio.Future[None]"
    calls: Sequence[Call] = ()
    """What may be paused once it has its place."""
    paused: bool = False


_Queue = dict[_Waiter, None]
"""Waiters of one user, oldest first."""


class Admission:
    """The calls of one model's services."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`capacity`: calls that may be under way at once. `clock`: in seconds."""
        self._running = Pool(capacity, MAX_BYTES)
        self._room = Pool(MAX_WAITING, MAX_BYTES)
        self._queues: dict[str, dict[str, _Queue]] = {}
        """By tenant and user. The order of both is that of their turns."""
        self._pausable: dict[str, dict[Call, Asker]] = {}
        """Calls that have places and can be paused, by tenant. Those that began first come first."""
        self._paused: dict[str, dict[Call, _Waiter]] = {}
        """By tenant."""
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=PACE_WINDOW)

    @asynccontextmanager
    async def place(
        self, asker: Asker, load: Load, timeout: float | None = None, calls: Sequence[Call] = ()
    ) -> AsyncGenerator[Callable[[Call], None], None]:
        """Wait for a place, and hold it. What is entered gives back the place of a call that has ended.

        `timeout`: seconds after which `TimedOut` is raised while it waits. `calls`: those of the load, if
        each of them can be paused; they begin when this is entered. Raises `Overloaded` at once if there is
        no room to wait in.
        """
        self.check_room(asker)
        if self._running.has_room(asker):
            self._start(asker, load, calls)
        else:
            await self._wait(asker, load, timeout, calls)
        under_way = dict.fromkeys(calls)
        others = load.calls - len(under_way)

        def leave(call: Call) -> None:
            # If it kept its place, a paused call of the same request could wait for it without an end.
            del under_way[call]
            self._end(asker, ONE_CALL, (call,))

        try:
            yield leave
        finally:
            self._ends.append(self._clock())
            self._end(asker, Load(others + len(under_way), load.size), under_way)

    def check_room(self, asker: Asker) -> None:
        """Raise `Overloaded` if a request would be refused now."""
        waits = asker.tenant in self._queues
        if waits and not (self._running.has_room(asker) or self._room.has_room(asker)):
            refusal = Overloaded("Too many requests are waiting already.")
            refusal.headers = {"Retry-After": str(self._seconds_to_wait(asker))}
            raise refusal

    def resize(self, capacity: int) -> None:
        """Change the number of calls that may be under way at once."""
        if self._running.calls.capacity != capacity:
            self._running.calls.capacity = capacity
            self._start_waiters()

    def refuse_waiters(self, error: GatewayError) -> None:
        """Whoever waits for a place gets `error`."""
        queues = [queue for users in self._queues.values() for queue in users.values()]
        for waiter in [waiter for queue in queues for waiter in queue]:
            self._remove(waiter)
            if not waiter.turn.done():
                waiter.turn.set_exception(error)
                waiter.turn.exception()  # a paused call that has all of its answer does not look at it

    @property
    def under_way(self) -> int:
        """Number of calls that have their places."""
        return self._running.calls.total

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a place."""
        return self._room.calls.total

    @property
    def idle(self) -> bool:
        """Nothing is under way and nothing waits: what was taken has been given back."""
        left = self._queues or self._pausable or self._paused
        return self._running.empty and self._room.empty and not left

    def check_integrity(self) -> None:
        """Raise `AssertionError` if the counts are not those of the calls and the queues."""
        waiters = [one for users in self._queues.values() for queue in users.values() for one in queue]
        assert sum(self._room.calls.of_tenant.values()) == sum(one.load.calls for one in waiters)
        paused = {one for calls in self._paused.values() for one in calls.values()}
        assert {one for one in waiters if one.paused} <= paused
        for tenant, calls in self._pausable.items():
            assert 0 < len(calls) <= self._running.calls.of_tenant[tenant]
            assert not calls.keys() & self._paused.get(tenant, {}).keys()
        assert all(self._paused.values())
        for resource in (self._running.calls, self._running.size, self._room.calls, self._room.size):
            assert min(resource.of_tenant.values(), default=1) > 0
            assert sum(resource.of_tenant.values()) == resource.capacity - resource.free

    async def _wait(self, asker: Asker, load: Load, timeout: float | None, calls: Sequence[Call]) -> None:
        """Return when the place has been taken."""
        waiter = _Waiter(asker, load, asyncio.get_running_loop().create_future(), calls)
        self._add(waiter)
        self._start_waiters()
        try:
            with within("gateway.waiting", trace.get_current_span()):
                async with asyncio.timeout(timeout):
                    await waiter.turn
        except BaseException as error:
            self._remove(waiter)
            # It may have got its turn at the very moment in which it was cancelled.
            if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._end(asker, load, calls)
            if isinstance(error, TimeoutError):
                raise TimedOut("The answer was not complete within 'timeout'.", param="timeout") from None
            raise

    def _start(self, asker: Asker, load: Load, calls: Sequence[Call]) -> None:
        self._running.take(asker, load)
        if calls:
            self._pausable.setdefault(asker.tenant, {}).update(dict.fromkeys(calls, asker))

    def _end(self, asker: Asker, load: Load, calls: Iterable[Call]) -> None:
        """Give back what is held. `load`: as if none of `calls` were paused."""
        held = load.calls
        for call in calls:
            if (waiter := self._unpause(call, asker)) is not None:
                self._remove(waiter)
                held -= 1
            else:
                self._forget(call, asker)
        self._running.give_back(asker, Load(held, load.size))
        self._start_waiters()

    def _start_waiters(self) -> None:
        while (waiter := self._next()) is not None:
            self._remove(waiter)
            if waiter.turn.done():  # cancelled
                continue
            self._to_the_end(waiter.asker)
            if waiter.paused:
                self._unpause(waiter.calls[0], waiter.asker)
            self._start(waiter.asker, waiter.load, waiter.calls)
            waiter.turn.set_result(None)

    def _to_the_end(self, asker: Asker) -> None:
        """The tenant's next turn is after those of all others. So is the user's, within the tenant."""
        if (users := self._queues.pop(asker.tenant, None)) is not None:
            self._queues[asker.tenant] = users
            if (queue := users.pop(asker.user, None)) is not None:
                users[asker.user] = queue

    def _next(self) -> _Waiter | None:
        """The first in turn of those that find a place, for which calls of others may be paused."""
        if not self._queues:
            return None
        share, free, below = self._share(), self._running.calls.free, None
        for waiter in self._first_of_each(share):
            if free > 0 and (waiter.paused or self._running.has_room(waiter.asker)):
                return waiter
            if below is None and self._is_below(waiter, share):
                below = waiter
                if free <= 0:
                    break
        return below if below is not None and self._make_room(share) else None

    def _first_of_each(self, share: int) -> Iterator[_Waiter]:
        """The oldest waiter of every user, in the order of their turns. Of a tenant that may have no more,
        users without a paused call are left out: there may be thousands of them, and this is asked whenever a
        request ends."""
        calls, size = self._running.calls, self._running.size
        for tenant, users in self._queues.items():
            queues: Iterable[_Queue] = users.values()
            if tenant in calls.of_tenant:
                below = calls.of_tenant[tenant] < share
                if not size.may_have_room(tenant) or not (below or calls.may_have_room(tenant)):
                    paused = {one.asker.user for one in self._paused.get(tenant, {}).values()}
                    queues = [queue for user, queue in users.items() if user in paused] if paused else ()
            for queue in queues:
                yield next(iter(queue))

    def _share(self) -> int:
        """Calls that each tenant may have under way, whatever the others have."""
        tenants = len(self._running.calls.of_tenant.keys() | self._queues.keys())
        return max(1, self._running.calls.capacity // (tenants + 1))

    def _is_below(self, waiter: _Waiter, share: int) -> bool:
        """Whether its tenant, and this user of it, hold less than the share, and lack no bytes."""
        asker, running = waiter.asker, self._running
        first = asker.tenant not in running.calls.of_tenant
        return running.calls.weight(asker) < share and (
            first or waiter.paused or running.size.has_room(asker)
        )

    def _make_room(self, share: int) -> bool:
        """Have a place free. Calls of tenants that hold more than `share` are paused if that is enough."""
        held, needed = self._running.calls.of_tenant, 1 - self._running.calls.free
        if needed > 0:
            over = (min(len(calls), held[tenant] - share) for tenant, calls in self._pausable.items())
            if sum(max(0, each) for each in over) < needed:
                return False
        for _ in range(needed):
            self._pause_one(max(self._pausable, key=held.__getitem__))
        return True

    def _pause_one(self, tenant: str) -> None:
        """Pause the call that has had its place longest, of the user that holds most: all take turns."""
        users = self._running.calls.of_user
        call, asker = max(self._pausable[tenant].items(), key=lambda item: users[item[1]])
        self._forget(call, asker)
        self._running.give_back(asker, ONE_CALL)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(asker, ONE_CALL, turn, (call,), paused=True)
        self._paused.setdefault(tenant, {})[call] = waiter
        self._add(waiter)
        call.pause(turn)

    def _unpause(self, call: Call, asker: Asker) -> _Waiter | None:
        """What waits for the call, if it is paused. It is not any more."""
        calls = self._paused.get(asker.tenant, {})
        waiter = calls.pop(call, None)
        if waiter is not None and not calls:
            del self._paused[asker.tenant]
        return waiter

    def _forget(self, call: Call, asker: Asker) -> None:
        """It is not to be paused any more."""
        calls = self._pausable[asker.tenant]
        del calls[call]
        if not calls:
            del self._pausable[asker.tenant]

    def _add(self, waiter: _Waiter) -> None:
        """Let it wait: what is paused before what has not started."""
        users = self._queues.setdefault(waiter.asker.tenant, {})
        queue = users.setdefault(waiter.asker.user, {})
        if waiter.paused:
            users[waiter.asker.user] = {waiter: None, **queue}
        else:
            queue[waiter] = None
        self._room.take(waiter.asker, waiter.load)

    def _remove(self, waiter: _Waiter) -> None:
        """Let it wait no more, if it still does."""
        tenant, user = waiter.asker.tenant, waiter.asker.user
        users = self._queues.get(tenant, {})
        queue = users.get(user, {})
        if waiter not in queue:
            return
        del queue[waiter]
        if not queue:
            del users[user]
        if not users:
            del self._queues[tenant]
        self._room.give_back(waiter.asker, waiter.load)

    def _seconds_to_wait(self, asker: Asker) -> int:
        """Until the tenant's requests that wait now will have begun, at the rate of the latest ends."""
        if not self._ends:
            return 1
        waiting = sum(map(len, self._queues[asker.tenant].values()))
        passed = max(self._clock() - self._ends[0], 0.001)
        seconds = waiting * len(self._queues) * passed / len(self._ends)
        return min(MAX_RETRY_SECONDS, max(1, ceil(seconds)))
