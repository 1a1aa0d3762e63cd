"""What policies cost while much more is asked for than fits, and what turns are good for then."""

from types import SimpleNamespace
from typing import Any

import pytest

from ops.simulate.arrivals import Load
from ops.simulate.cost import StepCost
from ops.simulate.simulation import Setting, Simulation
from ops.simulate.trace import Arrival
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.policies import POLICIES

COST = StepCost.from_milliseconds(
    {"step": 1.5, "row": 0.1, "prefill": 0.07, "context": 4e-4, "pair": 8e-5, "idle": 0}
)
LOAD = Load(requests=120, rate=80.0, output_lengths=(16, 256))
LITTLE_MEMORY = {"pool_blocks": 256, "slots": 64}
FEW_SLOTS = {"pool_blocks": 512, "slots": 8}


def rate(policy: str, **setting: int) -> float:
    """Tokens a second."""
    found = Simulation(Setting(policy, **setting), COST, LOAD.requests).run(LOAD.arrivals())
    return found.output_tokens / (found.finished_at / 1e12)


@pytest.mark.parametrize("host_blocks", [0, 1024])
@pytest.mark.parametrize("scarce", [LITTLE_MEMORY, FEW_SLOTS], ids=["memory", "slots"])
def test_no_policy_spends_its_time_on_switching(scarce: dict[str, int], host_blocks: int) -> None:
    first_come = rate("fcfs", host_blocks=host_blocks, **scarce)
    for policy in POLICIES:
        assert rate(policy, host_blocks=host_blocks, **scarce) > 0.8 * first_come, policy


def test_who_is_admitted_is_not_preempted_soon() -> None:
    load = Load(requests=150, rate=80.0, prompt_lengths=(16, 32), output_lengths=(64, 600))
    ledger = Simulation(Setting(**LITTLE_MEMORY), COST, load.requests).run(load.arrivals())
    assert ledger.preempted < 2 * load.requests


def test_with_turns_short_answers_do_not_wait_for_long_ones() -> None:
    long = [Arrival(0.0, 32, 400) for _ in range(16)]
    short = [Arrival(0.1, 32, 16) for _ in range(64)]
    medians = {}
    for policy in ("fcfs", "round-robin"):
        found: Any = Simulation(Setting(policy, **FEW_SLOTS), COST, 80).run(iter(long + short)).summary()
        medians[policy] = found["end_to_end_ms"]["p50"]  # of a short one: most are
    assert medians["round-robin"] < 0.5 * medians["fcfs"]


def test_who_loses_memory_in_its_turn_comes_back_before_others_begin(fake: SimpleNamespace) -> None:
    fleet = Fleet(1000, "round-robin")
    scheduler, _ = fleet.add_worker(fake.limits(num_blocks=8, block_size=2, max_slots=4))
    worker = fake.StrictWorker(scheduler.limits)
    for name in ("old", "young", "newest"):
        fleet.accept(fake.request([len(name)] * 5, name, max_tokens=8))
    began = []
    while (plan := scheduler.plan()) is not None:
        began += [slot.request.request_id for slot in plan.new_slots]
        fleet.settle(scheduler, scheduler.complete(worker.execute(plan)))
    assert began == ["old", "young", "young", "newest"]
