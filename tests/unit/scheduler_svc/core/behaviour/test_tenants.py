"""Tenants that try to keep others waiting: when these begin all the same, and what they get, by policy.

The worker answers each plan at once, with tokens that end nothing.
"""

from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.beam_search import BeamSearch, Candidate, EarlyStopping
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Pooling, Request
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.shares import RARELY, TURN

LIMITS = {
    "num_blocks": 4096,
    "block_size": 16,
    "max_slots": 64,
    "max_model_len": 512,
    "max_step_tokens": 512,
    "vocab_size": 1000,
}
URGENT = {"priority": -1000, "deadline": 1.0}
"""A tenant that keeps others waiting says that all it asks for is urgent."""

every_policy = pytest.mark.parametrize("policy", POLICIES)


class Crowd:
    """A fleet of one worker, and what each tenant, and each of its users, got of it."""

    def __init__(self, fake: SimpleNamespace, policy: str, speculation: str = "off", **limits: int) -> None:
        self.fleet = Fleet(512, policy, speculation)
        self.scheduler, _ = self.fleet.add_worker(fake.limits(**{**LIMITS, **limits}))
        self.tokens: Counter[str] = Counter()
        """Tokens gained, and prompts that were embedded."""
        self.prompts: Counter[str] = Counter()
        """Prompt tokens computed."""
        self.rows: Counter[str] = Counter()
        self.preempted: Counter[str] = Counter()
        self.steps = self._asked = 0

    def ask(self, tenant: str, prompt: int = 40, times: int = 1, **fields: Any) -> list[SequenceGroup]:
        """`times` requests whose prompts have nothing in common, for 400 tokens each by default."""
        fields = {"max_tokens": 400, "tenant": tenant, **fields}
        groups = []
        for _ in range(times):
            self._asked += 1
            text = array("i", [self._asked % 900] * prompt)
            request = Request(f"r{self._asked}", text, salt=tenant, **fields)
            group, outcome = self.fleet.accept(request, self._watch)
            assert not outcome.failed
            groups.append(group)
        return groups

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if (plan := self.scheduler.plan()) is None:
                return
            self.steps += 1
            self._note(plan)
            outcome = self.scheduler.complete(self._result(plan))
            self.fleet.settle(self.scheduler, outcome)
            for gain in outcome.gains:
                self.tokens[_name(gain.group)] += 1
                self.tokens[gain.group.request.tenant] += 1
            for group, _ in outcome.embedded:
                self.tokens[group.request.tenant] += 1
        self.scheduler.check_integrity()

    def steps_until(self, tenant: str, most: int = 5000) -> int:
        """Steps until a tenant has gained something."""
        for number in range(1, most + 1):
            self.step()
            if self.tokens[tenant]:
                return number
        raise AssertionError(f"{tenant} has had nothing in {most} steps")

    def share(self, tenant: str, steps: int) -> float:
        """Share of the tokens that a tenant gains in the next steps."""
        before = self.tokens.copy()
        self.step(steps)
        gained = {name: count - before[name] for name, count in self.tokens.items() if "/" not in name}
        return gained[tenant] / sum(gained.values())

    def _watch(self, sequence: Sequence) -> None:
        self.preempted[sequence.group.request.tenant] += sequence.state is State.PREEMPTED

    def _note(self, plan: StepPlan) -> None:
        flight = self.scheduler.flights[-1]
        for sequence, count in zip(flight.sequences, plan.rows.counts, strict=True):
            tenant = sequence.group.request.tenant
            self.rows[tenant] += 1
            if count > 1:
                self.prompts[tenant] += count

    def _result(self, plan: StepPlan) -> StepResult:
        flight, entry, candidates = self.scheduler.flights[0], 0, {}
        for sequence, samples in zip(flight.sequences, plan.rows.samples, strict=True):
            if sequence.group.beam_round is not None:
                # Continuations of the later beams are better, so that beams fork in every round.
                best = range(sequence.group.request.candidates)
                candidates[entry] = [Candidate(2 + token, -token / (9 + sequence.index)) for token in best]
            entry += samples
        embeddings = dict.fromkeys(flight.embedded, b"12345678")
        return StepResult(plan.step, [1] * entry, candidates=candidates, embeddings=embeddings)


def _name(group: SequenceGroup) -> str:
    return f"{group.request.tenant}/{group.request.user}"


ATTACKS: dict[str, dict[str, Any]] = {
    "samples without end": {"n": 64, "rolling": True, "max_tokens": 0},
    "long samples": {"n": 64, "max_tokens": 450},
    "many requests": {"times": 300},
    "beams": {"beams": BeamSearch(64, 1.0, EarlyStopping.NEVER)},
}


@every_policy
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_tenant_keeps_all_slots(fake: SimpleNamespace, policy: str, attack: str) -> None:
    crowd = Crowd(fake, policy)
    crowd.ask("hog", **ATTACKS[attack], **URGENT)
    crowd.step(100)
    crowd.ask("small", times=40)
    assert crowd.steps_until("small") <= 2
    crowd.step(TURN)
    if attack != "beams":  # whose answers come at their end
        assert crowd.share("small", 100) == pytest.approx(0.5, abs=0.03)
    if policy != "round-robin":  # in which sequences of one user make way for each other
        assert crowd.preempted["hog"] <= 64 + crowd.steps // 100, "with equal shares nobody makes way"


@every_policy
@pytest.mark.parametrize("attack", ATTACKS)
def test_one_that_comes_at_the_same_time_waits_for_a_turn_at_most(
    fake: SimpleNamespace, policy: str, attack: str
) -> None:
    crowd = Crowd(fake, policy)
    crowd.ask("hog", **ATTACKS[attack], **URGENT)
    crowd.step(3)
    crowd.ask("small")
    if attack != "beams":  # which fork all the time, and so give up slots without being preempted
        crowd.step(TURN - 4)
        assert not crowd.preempted["hog"]
    assert crowd.steps_until("small") <= 6


@every_policy
@pytest.mark.parametrize("host_blocks", [0, 600])
def test_no_tenant_keeps_all_memory(fake: SimpleNamespace, policy: str, host_blocks: int) -> None:
    crowd = Crowd(fake, policy, num_blocks=200, host_blocks=host_blocks, max_model_len=1600)
    crowd.ask("hog", prompt=1000, times=10, rolling=True, max_tokens=0, **URGENT)
    crowd.step(100)
    crowd.ask("small", prompt=300, times=20)
    assert crowd.steps_until("small") <= 2 * TURN
    crowd.step(100)
    assert crowd.share("small", 600) > 0.4


@every_policy
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_a_slot_that_cannot_be_divided_is_had_in_turns(
    fake: SimpleNamespace, policy: str, speculation: str
) -> None:
    crowd = Crowd(fake, policy, speculation, max_slots=1)
    crowd.ask("hog", rolling=True, max_tokens=0, **URGENT)
    crowd.step(500)
    crowd.ask("small", times=20, max_tokens=300)
    assert crowd.steps_until("small") <= TURN + 1
    crowd.rows.clear()
    crowd.step(1000)
    assert crowd.rows["small"] / crowd.rows.total() == pytest.approx(0.5, abs=0.06)
    if policy != "round-robin":
        assert crowd.preempted.total() <= crowd.steps / TURN + 1


@every_policy
def test_one_sequence_grows_although_another_tenant_has_all_other_memory(
    fake: SimpleNamespace, policy: str
) -> None:
    crowd = Crowd(fake, policy, num_blocks=100, max_slots=16)
    crowd.ask("hog", times=15, rolling=True, max_tokens=0, **URGENT)
    crowd.step(40)
    crowd.ask("small")
    crowd.step(TURN)
    crowd.rows.clear()
    crowd.step(200)
    assert crowd.preempted["hog"] > 10
    assert crowd.preempted["small"] == 0
    assert crowd.rows["small"] == 200, "it never waits for a block"


@every_policy
def test_two_that_both_need_all_memory_end_both(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy, num_blocks=32, max_step_tokens=8)
    groups = [crowd.ask(tenant, prompt=400, max_tokens=100)[0] for tenant in ("one", "two", "three")]
    crowd.step(4000)
    assert not any(group.unfinished for group in groups)
    # Of three prompts of 50 steps each: every turn gains as much as it computes again.
    assert crowd.prompts.total() <= 5 * 1200


@every_policy
def test_long_prompts_do_not_keep_short_ones_waiting(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy, max_step_tokens=64)
    crowd.ask("hog", prompt=500, times=60, max_tokens=8, **URGENT)
    crowd.step(20)
    crowd.ask("small", prompt=60)
    assert crowd.steps_until("small") <= 3
    crowd.ask("same", prompt=500, times=60, max_tokens=8, **URGENT)
    crowd.prompts.clear()
    crowd.step(200)
    assert crowd.prompts["same"] / crowd.prompts.total() == pytest.approx(0.5, abs=0.05)


@every_policy
def test_texts_to_embed_do_not_keep_answers_waiting(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy, max_slots=4)
    crowd.ask("hog", prompt=500, times=100, max_tokens=0, pooling=Pooling.MEAN, **URGENT)
    crowd.step(5)
    crowd.ask("small")
    assert crowd.steps_until("small") <= 4


@every_policy
def test_beams_that_are_wider_than_their_share_go_on(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy, max_slots=8)
    crowd.ask("hog", n=8, rolling=True, max_tokens=0, **URGENT)
    crowd.step(50)
    (search,) = crowd.ask("small", beams=BeamSearch(8, 1.0, EarlyStopping.NEVER), max_tokens=10)
    crowd.ask("small", max_tokens=20)
    crowd.step(400)
    assert not search.unfinished


@every_policy
def test_a_tenant_gains_nothing_by_inventing_users(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy)
    for number in range(100):
        crowd.ask("many", user=f"user-{number}", times=2)
    crowd.step(50)
    crowd.ask("one", times=60)
    crowd.step(TURN + 10)
    assert crowd.share("one", 200) == pytest.approx(0.5, abs=0.03)


@every_policy
def test_users_share_what_their_tenant_has(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy)
    crowd.ask("other", times=300)
    crowd.ask("a", user="hog", n=64, rolling=True, max_tokens=0, **URGENT)
    crowd.step(100)
    crowd.ask("a", user="small", times=40)
    crowd.step(TURN + 10)
    crowd.tokens.clear()
    crowd.step(200)
    assert crowd.tokens["a"] / crowd.tokens["other"] == pytest.approx(1, abs=0.1)
    assert crowd.tokens["a/small"] / crowd.tokens["a/hog"] == pytest.approx(1, abs=0.1)


@every_policy
@pytest.mark.parametrize("blocks", [4096, 400])
def test_more_tenants_than_slots_take_turns(fake: SimpleNamespace, policy: str, blocks: int) -> None:
    crowd = Crowd(fake, policy, max_slots=8, num_blocks=blocks)
    for number in range(8):
        crowd.ask(f"hog-{number}", prompt=400, rolling=True, max_tokens=0, **URGENT)
    crowd.step(200)
    crowd.ask("small")
    assert crowd.steps_until("small") <= TURN + 2
    crowd.ask("late")
    assert crowd.steps_until("late") <= 5 * TURN


def test_three_tenants_share_an_odd_number_of_slots(fake: SimpleNamespace) -> None:
    crowd = Crowd(fake, "fcfs", max_slots=4)
    for tenant in ("a", "b", "c"):
        crowd.ask(tenant, times=40)
    crowd.step(3000)
    assert max(crowd.tokens[each] for each in "abc") < 1.1 * min(crowd.tokens[each] for each in "abc")


def test_turns_cost_little_where_many_tenants_wait(fake: SimpleNamespace) -> None:
    crowd = Crowd(fake, "fcfs", max_slots=8, num_blocks=8 * 28)  # so that a preempted one finds little again
    for number in range(40):
        crowd.ask(str(number), prompt=300, times=2, max_tokens=140)
    prompts = 80 * 300
    while not crowd.scheduler.idle:
        crowd.step()
    assert sum(each for each in crowd.tokens.values()) == 2 * 80 * 140  # by tenant, and by user
    assert crowd.prompts.total() - prompts <= 512 + 1.5 * crowd.steps * 512 / RARELY


def test_a_tenant_that_paused_cannot_claim_what_it_did_not_use(fake: SimpleNamespace) -> None:
    crowd = Crowd(fake, "fcfs", max_slots=8)
    crowd.ask("steady", times=60)
    crowd.ask("idle", max_tokens=2)
    crowd.step(500)
    crowd.ask("idle", times=60)
    assert crowd.share("idle", 300) < 0.55


@every_policy
def test_who_asks_for_one_prompt_after_the_other_has_no_more_of_the_steps(
    fake: SimpleNamespace, policy: str
) -> None:
    crowd = Crowd(fake, policy)
    for tenant in ("one", "two"):
        crowd.ask(tenant, prompt=500, times=300, max_tokens=4)
    crowd.step(10)
    crowd.prompts.clear()
    steady: list[SequenceGroup] = []
    for _ in range(200):
        if not any(group.unfinished for group in steady):
            steady = crowd.ask("steady", prompt=500, max_tokens=1, **URGENT)
        crowd.step()
    assert crowd.prompts["steady"] / crowd.prompts.total() < 0.4


@pytest.mark.parametrize("tokens", [8, TURN + 1])
def test_who_asks_for_one_answer_after_the_other_has_no_more_of_the_slots(
    fake: SimpleNamespace, tokens: int
) -> None:
    crowd = Crowd(fake, "fcfs", max_slots=8)
    for number in range(31):
        crowd.ask(str(number), rolling=True, max_tokens=0)
    crowd.step(500)
    crowd.rows.clear()
    steady: list[SequenceGroup] = []
    for _ in range(1500):
        if not any(group.unfinished for group in steady):
            steady = crowd.ask("steady", max_tokens=tokens)
        crowd.step()
    assert crowd.rows["steady"] / crowd.rows.total() < 1.2 / 32


@every_policy
def test_slots_that_nobody_else_wanted_are_no_reason_to_wait(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy, max_slots=8)
    crowd.ask("little", rolling=True, max_tokens=0)
    crowd.ask("much", times=16, rolling=True, max_tokens=0)
    crowd.step(1500)
    for number in range(20):
        crowd.ask(str(number), rolling=True, max_tokens=0)
    crowd.step(10 * TURN)
    crowd.rows.clear()
    crowd.step(1000)
    assert crowd.rows["much"] / crowd.rows.total() == pytest.approx(1 / 22, abs=0.02)


@every_policy
def test_alone_a_tenant_gets_everything_and_nobody_makes_way(fake: SimpleNamespace, policy: str) -> None:
    crowd = Crowd(fake, policy)
    crowd.ask("alone", n=64, rolling=True, max_tokens=0)
    crowd.step(100)
    assert not crowd.scheduler.state.shares.contended
    assert crowd.preempted["alone"] == 0
    crowd.ask("other", max_tokens=5)
    crowd.step(TURN)
    before = crowd.tokens["alone"]
    crowd.step(10)
    assert crowd.tokens["alone"] - before == 640, "once the other has ended"
