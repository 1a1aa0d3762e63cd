"""Preemption: who gives up slot and blocks, for a sequence that waits or for one that runs out of blocks."""

from collections.abc import Iterable, Iterator

from scheduler_svc.core.capabilities import beams
from scheduler_svc.core.sequence import Age, Sequence, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def preempt(state: SchedulerState, victim: Sequence) -> None:
    """Take slot and blocks from a running sequence, and let it wait."""
    victim.reached = max(victim.reached, victim.planned)
    state.batch.leave(victim, State.PREEMPTED)
    if not beams.park(victim):
        state.waiting.push(victim)


def make_room(state: SchedulerState) -> None:
    """Preempt for a sequence that waits, if others yield to it."""
    for candidate in _claimants(state):
        if victims := _victims_for(state, candidate, _yielding(state, candidate)):
            _make_way(state, victims)
            return


def yield_evenly(state: SchedulerState) -> bool:
    """Preempt sequences that wait for their grammars for the first one that waits for a slot and for nothing
    else, of another tenant or user. Whether any was preempted.

    A grammar is compiled although its sequences have lost their slots. Images would be looked at anew.
    """
    first = state.waiting.peek()
    if first is None or first.group.request.grammar or first.group.request.images:
        return False
    held = [sequence for sequence in state.awaiting_worker() if not sequence.sight]
    yielding = state.shares.yielding(state.batch.running, first, lambda _: False, evenly=True)
    victims = _victims_for(state, first, (sequence for sequence in yielding if sequence in held))
    _make_way(state, victims)
    return bool(victims)


def preempt_least_needed(state: SchedulerState) -> None:
    """Preempt one sequence where none can compute: first a beam that waits for the others of its round."""

    def need(sequence: Sequence) -> tuple[bool, Age]:
        return sequence.planned == len(sequence.tokens), sequence.age

    preempt(state, max(state.batch.running, key=need))


def grow(
    state: SchedulerState, step: StepBuilder, sequence: Sequence, wanted: int, may_preempt: bool = True
) -> bool:
    """Give the sequence up to `wanted` blocks. False if it got none.

    If no block is free, later sequences without a row in this step are preempted, if that is allowed.
    """
    pool = state.batch.pool
    while not pool.free_blocks:
        if not (may_preempt and _preempt_later(state, step, sequence)):
            return False
    assert sequence.table is not None
    added = sequence.table.grow(min(wanted, pool.free_blocks))
    step.append_blocks(sequence.slot, added)
    return True


def lost_tokens(state: SchedulerState, victim: Sequence) -> float:
    """What preempting costs, in tokens that could be computed while the loss is made good.

    Blocks that others share are not lost. The tokens of all other blocks are computed again, except those of
    full blocks that host memory takes: these are brought back, and before that taken there unless they are
    there already. A request that takes no cached prefix loses everything.
    """
    table, pool, limits = victim.table, state.batch.pool, state.limits
    assert table is not None
    if not victim.group.most_cached:
        return victim.planned
    held = table.held()
    own = [number for number, block in enumerate(held, table.dropped) if pool.references(block) == 1]
    lost = victim.planned - (len(held) - len(own)) * limits.block_size
    if pool.host is None:
        return lost
    kept = [number for number in own if number < table.named][: limits.host_blocks]
    moves = sum(1 if victim.chain[number] in pool.host else 2 for number in kept)
    return lost - len(kept) * limits.block_size + moves * limits.swap_tokens


def _make_way(state: SchedulerState, victims: Iterable[Sequence]) -> None:
    """Preempt sequences for one that waits."""
    for victim in victims:
        preempt(state, victim)
        state.shares.charge_again(victim)


def _claimants(state: SchedulerState) -> Iterator[Sequence]:
    """Sequences that wait and to which others may yield."""
    if not state.shares.contended:
        if state.policy.preempts and (first := state.waiting.peek()) is not None:
            yield first
        return
    yield from state.shares.owed(state.waiting.heads())
    head = state.waiting.in_turn()  # within a user: one user in each step, as there may be many
    if head is not None and (state.policy.preempts or head.group.account.searches):
        yield head


def _yielding(state: SchedulerState, candidate: Sequence) -> Iterator[Sequence]:
    """The running sequences that yield to the candidate, the first to be preempted first."""
    policy, running = state.policy, state.batch.running
    if not state.shares.contended:
        return (each for each in reversed(running) if policy.yields(each, candidate))

    def yields(sequence: Sequence) -> bool:
        return (policy.preempts and policy.yields(sequence, candidate)) or beams.holds_up_its_round(sequence)

    return state.shares.yielding(running, candidate, yields)


def _victims_for(state: SchedulerState, candidate: Sequence, yielding: Iterable[Sequence]) -> list[Sequence]:
    """Those of the `yielding` sequences to preempt so that the candidate finds a slot and blocks.

    Empty if there is room already, or if there would be none even without all that yield. Shared blocks are
    not counted as room: neither those of a cached prefix, nor those that several victims share.
    """
    batch = state.batch
    free = batch.pool.free_blocks
    needed = state.limits.blocks_at_once(len(candidate.tokens)) + batch.reserved()
    slots, victims = len(batch.free_slots), list[Sequence]()
    for sequence in yielding:
        if slots and free >= needed:
            return victims
        if not sequence.about_to_end:
            assert sequence.table is not None
            victims.append(sequence)
            slots += 1
            free += sequence.table.own_blocks()
            needed -= batch.reserved_for(sequence)
    # Every accepted request fits into an empty batch.
    return victims if free >= needed or len(victims) == len(batch.running) else []


def _preempt_later(state: SchedulerState, step: StepBuilder, sequence: Sequence) -> bool:
    """Preempt a sequence that comes later in the order, if there is one.

    It must have neither a row nor a new slot in this step, take no part in a fork of it, and not be about
    to end. One that would free nothing comes last: it helps only once those that share its blocks have gone,
    too. Of the others, it is one of the tenant that has most slots, and of its user that has most, and loses
    least by it. If the policy preempts, those with the highest measure come first. On a tie the youngest is
    preempted.
    """
    planned, order = step.seated.union(step.sequences), state.in_order()
    victims = [
        each for each in order[order.index(sequence) + 1 :] if each not in planned and not each.about_to_end
    ]
    if not victims:
        return False

    def cost(victim: Sequence) -> tuple[bool, tuple[int, ...], float, float, Age]:
        assert victim.table is not None
        frees, user = victim.table.own_blocks() > 0, victim.group.account
        measure, arrival, index = victim.age
        shares = [-each for each in (*user.owner.claim, *user.claim)]
        rank = -measure if state.policy.preempts else 0.0
        return not frees, tuple(shares), rank, lost_tokens(state, victim), (-measure, -arrival, -index)

    victim = min(victims, key=cost)
    step.drop_appends(victim.slot)
    preempt(state, victim)
    return True
