"""Who gets a place: no tenant keeps another waiting, whatever it sends."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from gateway.errors import Overloaded, TimedOut, Unavailable
from gateway.upstream import admission as module
from gateway.upstream.admission import Admission
from gateway.upstream.places import Asker, Load, Resource

CAPACITY = 120
MANY = 1000
ALONE = 57
"""Places that one user gets whom nobody disturbs."""
NORTH, SOUTH = Asker("north"), Asker("south")
ONE = Load()


class Call:
    """A call that is paused and goes on as it is told."""

    def __init__(self, requests, asker):
        self.requests, self.asker = requests, asker
        self.turn = None

    def pause(self, turn):
        assert not self.paused
        self.turn = turn
        self.requests.pauses.append(self)

    @property
    def paused(self):
        return self.turn is not None and not self.turn.done()


class Requests:
    """Requests under way, which hold their places until they are told to end."""

    def __init__(self, admission, pausable=False):
        """`pausable`: whether they give way."""
        self.admission = admission
        self.pausable = pausable
        self.pauses = []
        self.calls = {}
        self.leave = {}
        self.running = []
        self.ends = []
        self.refused = []
        self.tasks = {}

    def ask(self, asker, load=ONE, timeout=None):
        """Ask; what is returned lets the request end."""
        end = asyncio.Event()
        self.tasks[asyncio.ensure_future(self._hold(asker, load, timeout, end))] = end
        return end

    async def _hold(self, asker, load, timeout, end):
        calls = [Call(self, asker) for _ in range(load.calls)] if self.pausable else []
        try:
            async with self.admission.place(asker, load, timeout, calls) as leave:
                self.leave[end] = leave
                self.running.append(asker)
                self.ends.append(end)
                self.calls[end] = calls
                try:
                    await end.wait()
                finally:
                    del self.calls[end], self.leave[end]
                    self.running.remove(asker)
                    self.ends.remove(end)
        except Overloaded as refusal:
            self.refused.append(refusal)

    def held(self, tenant=None):
        """Calls that have places, of one tenant or of all."""
        calls = [call for calls in self.calls.values() for call in calls if not call.paused]
        return sum(tenant in (None, call.asker.tenant) for call in calls)

    @property
    def paused(self):
        return [call for calls in self.calls.values() for call in calls if call.paused]

    def end_call(self, end, call):
        """One call of a request has ended, and the others go on."""
        self.calls[end].remove(call)
        self.leave[end](call)

    def end_oldest(self):
        self.ends[0].set()

    async def settle(self):
        for _ in range(3):
            await asyncio.sleep(0)
        self.admission.check_integrity()

    async def end_all(self):
        while open_tasks := [task for task in self.tasks if not task.done()]:
            for task in open_tasks:
                self.tasks[task].set()
            await asyncio.wait(open_tasks, timeout=0.01)


@pytest.fixture
def requests():
    return Requests(Admission(CAPACITY))


async def ended(requests):
    await requests.end_all()
    assert requests.admission.idle
    assert not requests.running


async def test_a_tenant_alone_has_nearly_half_and_leaves_something_to_a_second_user(requests):
    for _ in range(CAPACITY):
        requests.ask(NORTH)
    await requests.settle()
    assert requests.running.count(NORTH) == ALONE
    for number in range(CAPACITY):
        requests.ask(Asker("north", f"user-{number}"))
    await requests.settle()
    assert len(requests.running) == CAPACITY // 2
    await ended(requests)


@pytest.mark.parametrize("users", [1, 300])
async def test_a_flood_of_one_tenant_does_not_keep_another_waiting(requests, users):
    for number in range(300):
        requests.ask(Asker("north", f"user-{number % users}"))
    await requests.settle()
    for _ in range(CAPACITY // 6):
        requests.ask(SOUTH)
        await requests.settle()
    assert requests.running.count(SOUTH) == CAPACITY // 6, "all of them started at once"
    await ended(requests)


async def test_many_floods_leave_room_for_one_more_tenant(requests):
    tenants = [Asker(f"tenant-{number}") for number in range(20)]
    for tenant in tenants:
        for _ in range(100):
            requests.ask(tenant)
    await requests.settle()
    for _ in range(400):
        requests.end_oldest()
        await requests.settle()
    held = [requests.running.count(tenant) for tenant in tenants]
    assert max(held) - min(held) <= 1
    requests.ask(SOUTH)
    await requests.settle()
    assert SOUTH in requests.running
    await ended(requests)


async def test_tenants_have_turns_however_many_users_one_of_them_invents(requests):
    ends = [requests.ask(Asker(f"other-{number}")) for number in range(CAPACITY)]
    await requests.settle()
    for number in range(50):
        requests.ask(Asker("north", f"user-{number}"))
    for _ in range(50):
        requests.ask(SOUTH)
    await requests.settle()
    begun = len(requests.running)
    for end in ends[:40]:
        end.set()
        await requests.settle()
    north = sum(asker.tenant == "north" for asker in requests.running)
    assert begun == CAPACITY
    assert abs(north - requests.running.count(SOUTH)) <= 3
    assert north + requests.running.count(SOUTH) > 20
    await ended(requests)


async def test_users_of_one_tenant_have_turns(requests):
    ends = [requests.ask(Asker("north", "first")) for _ in range(60)]
    second = [requests.ask(Asker("north", "second")) for _ in range(3)]
    await requests.settle()
    assert requests.running.count(Asker("north", "second")) == 3
    for end in (*ends, *second):
        end.set()
    await ended(requests)


async def test_the_place_of_a_request_that_ended_goes_to_the_oldest_that_waits(requests):
    ends = [requests.ask(NORTH) for _ in range(CAPACITY)]
    await requests.settle()
    begun = len(requests.running)
    ends[0].set()
    await requests.settle()
    assert len(requests.running) == begun
    await ended(requests)


async def test_a_full_room_refuses_at_once_and_says_when_to_come_back(monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 30)
    now = 0.0
    requests = Requests(Admission(CAPACITY, clock=lambda: now))
    ends = [requests.ask(NORTH) for _ in range(100)]
    await requests.settle()
    assert len(requests.refused) == 100 - ALONE - 15
    assert {refusal.headers["Retry-After"] for refusal in requests.refused} == {"1"}
    requests.ask(SOUTH)
    await requests.settle()
    assert SOUTH in requests.running
    for number in range(1, 21):  # one ends every two seconds
        now = number * 2.0
        ends[number - 1].set()
        await requests.settle()
        requests.ask(NORTH)
        await requests.settle()
    requests.refused.clear()
    requests.ask(NORTH)
    await requests.settle()
    (refusal,) = requests.refused
    assert 28 <= int(refusal.headers["Retry-After"]) <= 31, "fifteen wait before it"
    await ended(requests)


async def test_bytes_are_shared_out_as_calls_are(requests):
    large = Load(1, module.MAX_BYTES // 30)
    for _ in range(30):
        requests.ask(NORTH, large)
    await requests.settle()
    assert requests.running.count(NORTH) == 15
    requests.ask(SOUTH, large)
    await requests.settle()
    assert SOUTH in requests.running
    await ended(requests)


async def test_a_request_larger_than_all_there_is_gets_its_turn(requests):
    requests.ask(NORTH, Load(10 * CAPACITY, 0))
    await requests.settle()
    assert requests.running == [NORTH]
    end = requests.ask(SOUTH)
    await requests.settle()
    assert requests.running == [NORTH], "there is no room until it ends"
    next(iter(requests.tasks.values())).set()
    await requests.settle()
    assert requests.running == [SOUTH]
    end.set()
    await ended(requests)


async def test_who_leaves_while_it_waits_leaves_nothing_behind(requests):
    for _ in range(CAPACITY):
        requests.ask(NORTH)
    await requests.settle()
    waiting = list(requests.tasks)[ALONE:]
    for task in waiting[::2]:
        task.cancel()
    next(iter(requests.tasks.values())).set()  # a place is given away in the turn in which others leave
    await requests.settle()
    assert len(requests.running) == ALONE
    await ended(requests)


async def test_time_runs_out_while_waiting(requests):
    requests.ask(NORTH, Load(10 * CAPACITY, 0))
    await requests.settle()
    with pytest.raises(TimedOut):
        async with requests.admission.place(SOUTH, Load(), timeout=0.01):
            raise AssertionError("there was no place")
    await ended(requests)


async def test_those_that_wait_are_refused_together(requests):
    requests.ask(NORTH, Load(10 * CAPACITY, 0))
    await requests.settle()

    async def wait():
        async with requests.admission.place(SOUTH, Load()):
            raise AssertionError("there was no place")

    waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
    await requests.settle()
    requests.admission.refuse_waiters(Unavailable("The gateway is stopping."))
    assert all(isinstance(end, Unavailable) for end in await asyncio.gather(*waiting, return_exceptions=True))
    await ended(requests)


async def test_more_places_start_those_that_wait(requests):
    for _ in range(CAPACITY):
        requests.ask(NORTH)
    await requests.settle()
    requests.admission.resize(2 * CAPACITY)
    await requests.settle()
    assert 2 * ALONE - 2 <= len(requests.running) <= 2 * ALONE
    await ended(requests)


@pytest.fixture
def endless():
    """Requests that give way, and whose answers have no end."""
    return Requests(Admission(CAPACITY), pausable=True)


async def flood(requests, tenants, load=ONE, each=CAPACITY):
    for number in range(tenants):
        for _ in range(each):
            requests.ask(Asker(f"flood-{number}"), load)
    await requests.settle()


@pytest.mark.parametrize("tenants", [1, 2, 17, CAPACITY - 1])
@pytest.mark.parametrize("prompts", [1, 16])
async def test_floods_without_end_keep_nobody_out(endless, tenants, prompts):
    await flood(endless, tenants, Load(prompts), each=CAPACITY // tenants + 2)
    for number in range(3):
        endless.ask(Asker(f"late-{number}"))
        await endless.settle()
        # Those that are as many as the places have one each. So do the latest, when others leave.
        late = tenants + number < CAPACITY
        assert endless.held(f"late-{number}") == late
        assert min(endless.held(f"flood-{flooding}") for flooding in range(tenants)) >= 1
    await ended(endless)


async def test_those_above_their_share_give_way_until_all_have_theirs(endless):
    await flood(endless, 5)
    assert endless.held() == CAPACITY
    endless.pauses.clear()
    for _ in range(CAPACITY):
        endless.ask(SOUTH)
    await endless.settle()
    share = CAPACITY // 7
    assert share - 2 <= endless.held("south") <= share, "a user leaves an eighth to others"
    assert all(endless.held(f"flood-{number}") >= endless.held("south") for number in range(5))
    assert len(endless.pauses) <= share, "one for each that started"
    assert endless.held() == CAPACITY
    await ended(endless)


async def test_calls_take_turns_to_give_way_and_go_on_when_there_is_a_place(endless):
    await flood(endless, 9)
    endless.pauses.clear()
    before = len(endless.paused)
    for number in range(20):
        end = endless.ask(Asker(f"late-{number}"))
        await endless.settle()
        assert len(endless.paused) == before + 1
        end.set()
        await endless.settle()
        assert endless.held() == CAPACITY, "one that was paused goes on at once"
        assert len(endless.paused) == before
    assert len(set(endless.pauses)) == len(endless.pauses) == 20
    await ended(endless)


async def test_calls_that_have_ended_leave_their_places_to_those_that_are_paused(endless):
    end = endless.ask(NORTH, Load(CAPACITY))
    await endless.settle()
    for number in range(10):
        endless.ask(Asker(f"late-{number}"))
    await endless.settle()
    # North is back at its share, and what ended keeps no place from what has not.
    assert len(endless.paused) == 10
    for call in [call for call in endless.calls[end] if not call.paused][:10]:
        endless.end_call(end, call)
    await endless.settle()
    assert not endless.paused
    assert endless.held() == CAPACITY
    for call in list(endless.calls[end])[:3]:
        endless.end_call(end, call)
    await endless.settle()
    assert endless.held() == CAPACITY - 3
    await ended(endless)


async def test_more_tenants_than_places_have_theirs_in_order_of_arrival(endless):
    ends = [endless.ask(Asker(f"tenant-{number}")) for number in range(2 * CAPACITY)]
    await endless.settle()
    for end in ends[:CAPACITY]:
        endless.ask(Asker("tenant-0"))  # who has a place does not come before those that have none
        end.set()
        await endless.settle()
    started = {asker.tenant for asker in endless.running}
    assert started >= {f"tenant-{number}" for number in range(CAPACITY, 2 * CAPACITY - 1)}
    assert not endless.refused
    await ended(endless)


async def test_who_waits_for_nothing_may_wait(endless, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 30)
    endless.admission = Admission(CAPACITY)
    await flood(endless, 3 * CAPACITY, each=2)
    assert {refusal.error_code for refusal in endless.refused} == {"overloaded"}
    endless.refused.clear()
    end = endless.ask(SOUTH)
    await endless.settle()
    assert not endless.refused
    assert not endless.held("south")
    endless.ask(SOUTH)
    await endless.settle()
    assert len(endless.refused) == 1, "one of its requests waits already"
    end.set()
    await ended(endless)


async def test_no_prompts_are_so_long_that_a_tenant_is_kept_out(endless):
    large = Load(1, module.MAX_BYTES // 8)
    await flood(endless, 17, large)
    endless.ask(SOUTH, Load(1, 1000))
    await endless.settle()
    assert endless.held("south") == 1
    await ended(endless)


async def test_what_cannot_be_paused_is_not(requests):
    for number in range(8):
        for _ in range(CAPACITY):
            requests.ask(Asker(f"tenant-{number}"))
    await requests.settle()
    requests.ask(SOUTH)
    await requests.settle()
    assert SOUTH not in requests.running
    for _ in range(8):  # others without anything may come before it
        requests.end_oldest()
        await requests.settle()
    assert SOUTH in requests.running
    await ended(requests)


async def test_a_paused_call_is_refused_with_those_that_wait(endless):
    await flood(endless, 9)
    endless.ask(SOUTH)
    await endless.settle()
    paused = endless.paused
    endless.admission.refuse_waiters(Unavailable("The gateway is stopping."))
    assert paused
    assert all(isinstance(call.turn.exception(), Unavailable) for call in paused)
    for task in endless.tasks:
        task.cancel()
    await asyncio.wait(endless.tasks)
    assert endless.admission.idle


@pytest.mark.parametrize("seed", range(20))
async def test_who_holds_nothing_is_admitted_whatever_others_do(seed):
    """Whatever tenants ask for and whoever leaves: a tenant that holds nothing starts at once."""
    chance = random.Random(seed)
    capacity, tenants = chance.choice(((8, 7), (40, 12), (40, 39), (100, 20)))
    requests = Requests(Admission(capacity), pausable=True)
    for number in range(300):
        asker = Asker(f"t{chance.randrange(tenants)}", f"u{chance.randrange(3)}")
        match chance.randrange(6):
            case 0:
                requests.ask(asker, Load(chance.choice((1, 1, 1, 5, 30)), chance.randrange(1000)))
            case 1:
                for _ in range(chance.randrange(50)):
                    requests.ask(asker)
            case 2 if requests.ends:
                end = chance.choice(requests.ends)
                if len(calls := requests.calls[end]) > 1 and not end.is_set():
                    requests.end_call(end, chance.choice(calls))
            case 3 if requests.ends:
                chance.choice(requests.ends).set()
            case 4:
                chance.choice(list(requests.tasks) or [asyncio.ensure_future(asyncio.sleep(0))]).cancel()
            case 5 if chance.random() < 0.3:
                requests.admission.resize(chance.choice((capacity, capacity, 2 * capacity)))
        if chance.random() < 0.7:
            await requests.settle()
        if number % 5 == 0:
            await requests.settle()
            before, now = len(requests.pauses), requests.admission._running.calls.capacity
            needed = max(0, requests.held() + 1 - now)
            end = requests.ask(Asker("newcomer"))
            await requests.settle()
            assert requests.held("newcomer") == 1
            assert len(requests.pauses) - before <= needed, "as many as one free place needs"
            end.set()
            await requests.settle()
    await ended(requests)


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_nothing_is_lost_and_nobody_is_forgotten(seed, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 40)
    chance = random.Random(seed)
    admission = Admission(12)
    requests = Requests(admission)
    for _ in range(600):
        match chance.randrange(5):
            case 0 | 1:
                asker = Asker(f"t{chance.randrange(4)}", f"u{chance.randrange(3)}")
                requests.ask(asker, Load(chance.choice((1, 1, 5)), chance.randrange(1000)))
            case 2 | 3 if requests.tasks:
                task = chance.choice(list(requests.tasks))
                if chance.random() < 0.7:
                    requests.tasks[task].set()
                else:
                    task.cancel()
            case 4:
                admission.resize(chance.randrange(4, 16))
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    await ended(requests)


async def test_a_place_is_given_back_whatever_ends_the_request(requests):
    with pytest.raises(ValueError, match="mine"):
        async with requests.admission.place(NORTH, Load(3, 4)):
            raise ValueError("mine")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(requests.admission.place(NORTH, Load(3, 4)))
        assert not requests.admission.idle
    assert requests.admission.idle


async def test_users_of_a_tenant_beyond_its_share_go_on_in_turns():
    requests = Requests(Admission(CAPACITY), pausable=True)
    users = [Asker("north", "much"), Asker("north", "little")]
    for asker, count in zip(users, (36, 12), strict=True):
        for _ in range(count):
            requests.ask(asker)
    await requests.settle()
    requests.admission.resize(6)
    requests.ask(SOUTH)
    await requests.settle()

    def paused():
        return [sum(call.asker == asker for call in requests.paused) for asker in users]

    much, little = paused()
    assert much > little > 1
    requests.admission.resize(8)
    await requests.settle()
    assert paused() == [much - 1, little - 1]
    await ended(requests)


@pytest.fixture
def weighed(monkeypatch):
    """Askers that were compared with what is free."""
    askers, weight = [], Resource.weight

    def counted(resource, asker):
        askers.append(asker)
        return weight(resource, asker)

    monkeypatch.setattr(Resource, "weight", counted)
    monkeypatch.setattr(module, "MAX_WAITING", 10 * MANY)
    return askers


@pytest.mark.parametrize("size", [1, module.MAX_BYTES // 4], ids=["no calls free", "no bytes free"])
async def test_users_that_a_tenant_invents_cost_next_to_nothing(monkeypatch, weighed, size):
    admission = Admission(CAPACITY)
    load = Load(size=size)

    async def ask(number):
        async with admission.place(Asker("north", f"user {number}"), load):
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        if size > 1:
            monkeypatch.setattr(admission._room.size, "capacity", 10 * MANY * size)
        await asyncio.gather(*map(ask, range(MANY)))
    assert admission.idle
    assert len(weighed) < 40 * MANY


async def test_neither_do_they_while_calls_of_the_tenant_are_paused(weighed):
    requests = Requests(Admission(CAPACITY), pausable=True)
    for _ in range(ALONE):
        requests.ask(NORTH)
    await requests.settle()
    requests.admission.resize(CAPACITY // 4)
    requests.ask(SOUTH)
    await requests.settle()
    assert requests.held("south") == 1
    assert requests.paused
    for number in range(MANY):
        requests.ask(Asker("north", f"user {number}"))
    await requests.settle()
    assert len(weighed) < 40 * MANY
    requests.admission.resize(CAPACITY)
    await requests.settle()
    assert not requests.paused
    await ended(requests)
