"""Simulated time is what a sum by hand gives; nothing is lost; a leap is as good as its steps."""

from dataclasses import replace
from typing import Any

import pytest

from ops.simulate.arrivals import KINDS, Load
from ops.simulate.cost import StepCost
from ops.simulate.ledger import Ledger
from ops.simulate.simulation import Setting, Simulation
from ops.simulate.trace import Arrival, Turn
from scheduler_svc.core.policies import POLICIES

COST = StepCost.from_milliseconds(
    {"step": 1, "row": 1, "prefill": 1, "context": 0.001, "pair": 0.001, "idle": 0}
)
QUICK = StepCost.from_milliseconds(
    {"step": 2, "row": 0.1, "prefill": 0.03, "context": 2e-4, "pair": 1e-5, "idle": 0}
)


def run(setting: Setting, arrivals: list[Arrival], cost: StepCost = COST, leaps: bool = True) -> Ledger:
    count = sum(1 + len(each.turns) for each in arrivals)
    return Simulation(setting, cost, count, leaps).run(iter(arrivals))


def summary(setting: Setting, load: Load, leaps: bool = True) -> dict[str, Any]:
    return run(setting, list(load.arrivals()), QUICK, leaps).summary()


@pytest.mark.parametrize("leaps", [True, False])
def test_a_request_alone_takes_the_sum_of_its_steps(leaps) -> None:
    found = run(Setting(), [Arrival(0.5, 20, 3)], leaps=leaps).summary()
    # The prompt: 1 + 20 and 210 pairs. Two decodes, that read 21 and 22 tokens.
    assert found["first_token_ms"] == dict.fromkeys(("p50", "p90", "p99"), 21.21)
    assert found["between_tokens_ms"] == {"p50": 2.021, "p90": 2.022, "p99": 2.022}
    assert found["end_to_end_ms"]["p50"] == 25.253
    assert found["seconds"] == 0.525253


@pytest.mark.parametrize(
    ("depth", "first", "ends"), [(1, 18.246, (23.275, 33.297)), (2, 20.268, (23.297, 33.297))]
)
def test_one_that_comes_meanwhile_waits_for_the_plans_under_way(depth, first, ends) -> None:
    found = run(Setting(depth=depth), [Arrival(0, 20, 4), Arrival(0.01, 5, 2)]).summary()
    # With one plan under way the second prompt is computed beside the first decode, at 21.21 ms; with two,
    # that decode has been planned without it, and it comes a step later.
    assert found["first_token_ms"]["p50"] == first
    if depth == 2:
        assert (found["end_to_end_ms"]["p50"], found["end_to_end_ms"]["p99"]) == ends


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("leaps", [True, False])
def test_who_comes_while_nothing_is_computed_waits_longer(depth, leaps) -> None:
    arrivals = [Arrival(0, 20, 4), Arrival(0.01, 5, 2), Arrival(1, 20, 4)]
    before, after = (
        run(Setting(depth=depth), arrivals, replace(COST, idle=idle), leaps).summary()
        for idle in (0, 5 * 10**9)
    )
    longer = {name: after["end_to_end_ms"][name] - before["end_to_end_ms"][name] for name in ("p50", "p99")}
    assert longer == pytest.approx({"p50": 5, "p99": 5})
    assert after["seconds"] - before["seconds"] == pytest.approx(0.005)
    assert after["between_tokens_ms"] == before["between_tokens_ms"]


def test_of_two_workers_each_takes_one() -> None:
    found = run(Setting(workers=2), [Arrival(0, 20, 3), Arrival(0, 20, 3)]).summary()
    assert found["end_to_end_ms"] == dict.fromkeys(("p50", "p90", "p99"), 25.253)


def test_a_shared_beginning_is_computed_once() -> None:
    shared = [Arrival(at, 40, 2, "system", 32, "me") for at in (0.0, 1.0)]
    assert run(Setting(), shared).summary()["cached_share"] == 32 / 80
    others = [replace(each, tenant=str(each.at)) for each in shared]
    assert run(Setting(), others).summary()["cached_share"] == 0


def test_a_chat_goes_on_where_it_was() -> None:
    found = run(Setting(), [Arrival(0, 32, 16, turns=(Turn(8, 2, 1.0), Turn(8, 2, 1.0)))]).summary()
    assert (found["requests"], found["output_tokens"]) == (3, 20)
    # The answer's last token has not been computed: of 48 tokens 47 can be found again, of 58 57.
    assert found["cached_share"] == pytest.approx((32 + 48) / (32 + 56 + 66), abs=1e-6)
    assert found["seconds"] > 2


def test_one_that_cannot_fit_is_refused_and_the_others_are_served() -> None:
    """An answer that the context has no room for is cut."""
    found = run(Setting(pool_blocks=4), [Arrival(0, 65, 1), Arrival(0, 60, 4), Arrival(0, 60, 5)]).summary()
    assert (found["requests"], found["refused"], found["output_tokens"]) == (3, 1, 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rate", "setting"),
    [
        (2, Setting(workers=3)),
        (20, Setting(workers=3, pool_blocks=100)),
        (80, Setting(workers=2, pool_blocks=150, step_tokens=100, slots=8)),
        (20, Setting(workers=2, depth=1)),
        (80, Setting(workers=2, pool_blocks=100, slots=8, host_blocks=300, swap_us=50)),
    ],
)
def test_leaps_change_nothing_and_nothing_is_lost(kind, rate, setting) -> None:
    load = Load(kind, requests=80, rate=rate, output_lengths=(1, 80), tenants=3, seed=4)
    arrivals = list(load.arrivals())
    simulation = Simulation(setting, QUICK, 80)
    found: Any = simulation.run(iter(arrivals)).summary()
    by_steps: Any = run(setting, arrivals, QUICK, leaps=False).summary()
    # Within a leap blocks are taken to be held in the mean; all else is the same to the picosecond.
    assert found.pop("held_share") == pytest.approx(by_steps.pop("held_share"), abs=0.03)
    assert found == by_steps
    due = [each.output_tokens + sum(turn.output_tokens for turn in each.turns) for each in arrivals]
    assert found["refused"] == 0
    assert found["output_tokens"] == sum(due)
    assert simulation.ledger.ended == simulation.ledger.asked == 80
    assert not simulation._lives
    assert all(worker.scheduler.idle and not worker.scheduler.held_blocks for worker in simulation._workers)


def test_the_same_seed_gives_the_same_figures() -> None:
    setting, load = Setting(workers=2, pool_blocks=100), Load(requests=200, rate=40, seed=1)
    assert summary(setting, load) == summary(setting, load)
    assert summary(setting, load) != summary(setting, replace(load, seed=2))


def test_what_more_memory_and_workers_are_worth() -> None:
    load = Load("shared", requests=200, rate=60, seed=1)
    little = summary(Setting(pool_blocks=100), load)
    much = summary(Setting(pool_blocks=4000), load)
    more = summary(Setting(workers=4, pool_blocks=4000), load)
    assert much["output_rate"] > little["output_rate"]
    assert much["cached_share"] > little["cached_share"]
    assert more["first_token_ms"]["p90"] < much["first_token_ms"]["p90"]
    assert max(little["held_share"]) <= 1


def test_what_host_memory_is_worth() -> None:
    load = Load("shared", requests=200, rate=60, seed=1)
    found = [
        summary(Setting(pool_blocks=100, host_blocks=host_blocks, swap_us=swap_us), load)
        for host_blocks, swap_us in ((0, 10), (2000, 10), (2000, 200), (2000, 300))
    ]
    without, quick, slow, too_slow = found
    assert quick["cached_share"] > without["cached_share"]
    assert quick["seconds"] < min(slow["seconds"], without["seconds"])
    assert too_slow == without, "to compute 16 tokens takes 480 us"


def test_a_block_that_comes_back_takes_its_time() -> None:
    """The prompt's two full blocks, which others have pushed out, push two of theirs out."""
    arrivals = [
        Arrival(0, 33, 1, "p", 33),
        *(Arrival(at, 60, 1) for at in (1, 2)),
        Arrival(3, 33, 1, "p", 33),
    ]
    times = {}
    for swap_us in (0.0, 100.0):
        ledger = run(Setting(pool_blocks=5, host_blocks=40, swap_us=swap_us), arrivals)
        times[swap_us] = ledger.summary()["seconds"]
    assert times[100.0] - times[0.0] == pytest.approx(4 * 100e-6, abs=1e-6)


@pytest.mark.parametrize("drafts", [1e-9, 0.5, 1.0])
def test_nothing_is_lost_with_drafts(drafts) -> None:
    setting = Setting(workers=2, pool_blocks=100, slots=8, drafts=drafts)
    for kind in KINDS:
        arrivals = list(Load(kind, requests=60, rate=4, output_lengths=(1, 80), seed=4).arrivals())
        found: Any = run(setting, arrivals, QUICK).summary()
        due = [each.output_tokens + sum(turn.output_tokens for turn in each.turns) for each in arrivals]
        assert (found["output_tokens"], found["refused"]) == (sum(due), 0)
        assert found == run(setting, arrivals, QUICK).summary()


def test_what_drafts_are_worth() -> None:
    """They hold or not; a step of one decode takes 2.1 ms, each draft 0.1 ms more."""
    alone = [Arrival(0, 32, 400)]
    without, *others = (
        run(Setting(drafts=drafts), alone, QUICK).summary()["seconds"] for drafts in (0.0, 1e-9, 0.8, 1.0)
    )
    assert without / others[0] > 0.9, "those that never hold are soon given up"
    assert without / others[1] > 1.3
    assert without / others[2] > 4
    crowd = Load(requests=300, rate=100, seed=1)
    assert summary(Setting(drafts=0.5), crowd)["output_rate"] == pytest.approx(
        summary(Setting(), crowd)["output_rate"], rel=0.02
    ), "many answers at once get none"


def test_tokens_of_one_step_come_at_once() -> None:
    found = run(Setting(drafts=1.0), [Arrival(0, 32, 400)], QUICK).summary()
    assert found["between_tokens_ms"]["p50"] > 2.1


def test_what_policies_are_worth_while_one_tenant_asks_too_much() -> None:
    load = Load("flood", requests=700, rate=120, output_lengths=(16, 112), seed=1)
    found = {policy: summary(Setting(policy, slots=16), load) for policy in POLICIES}
    assert min(each["fairness"] for each in found.values()) > 0.95
    urgent = {policy: each["urgent_first_token_ms"]["p90"] for policy, each in found.items()}
    assert urgent["priority"] < urgent["fcfs"] / 2
    assert found["deadline"]["in_time_share"] > found["fcfs"]["in_time_share"] + 0.1
    assert found["shortest"]["end_to_end_ms"]["p50"] < found["fcfs"]["end_to_end_ms"]["p50"]
    assert len({each["output_tokens"] for each in found.values()}) == 1


def test_settings_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="no policy lottery"):
        Setting(policy="lottery")
    with pytest.raises(ValueError, match=r"drafts 1\.5"):
        Setting(drafts=1.5)
