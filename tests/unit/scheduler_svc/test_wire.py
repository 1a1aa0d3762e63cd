"""The core's values as messages and back."""

import struct
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from proto import worker_pb2 as worker
from proto.images_pb2 import ImageFile, PromptImage
from proto.rpc.call import MAX_MESSAGE_BYTES
from proto.sampling import greedy
from proto.sampling_pb2 import FinishReason, Grammar, SamplingParams, StopConditions, TokenRules
from proto.scheduler_pb2 import Start
from proto.worker_pb2 import Candidates, Embeddings, Logprobs, RankedTokens, RowError, StepResult, WorkerReady
from scheduler_svc import wire
from scheduler_svc.core.draft_state import Forced
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.grammars import NewGrammar
from scheduler_svc.core.plan import (
    Copies,
    Gain,
    GivenTokens,
    NewSlot,
    Rows,
    StepPlan,
    SwapIn,
    SwapOut,
    TableAppends,
    TableCuts,
)
from scheduler_svc.core.plan import StepResult as CoreResult
from scheduler_svc.core.request import Finish, Request
from scheduler_svc.intake import request_from


def int32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def test_a_plan() -> None:
    sampling = SamplingParams(seed=2**64 - 1, top_p=0.5)
    request = Request("r", array("i", [1, 2]), sampling=sampling, traceparent="00-ab-cd-01")
    new = NewSlot(3, request, 1, array("i", [1, 2, 300]), [9])
    message = wire.plan_to(
        StepPlan(
            7,
            freed_slots=(4,),
            new_slots=(new,),
            table_cuts=TableCuts((1,), (2,)),
            table_appends=TableAppends((3, 3), (5, 6)),
            given_tokens=GivenTokens((1,), (0,)),
            swap_out=SwapOut((0, 9), (8, 7)),
            swap_in=SwapIn((6,), (10,)),
            copies=Copies((11,), (12,)),
            rows=Rows((3, 1), (0, 8), (3, 3), (1, 3)),
            draft_tokens=(-1, -1),
        )
    )
    assert message.step == 7
    assert message.freed_slots == int32(4)
    assert message.table_cuts == worker.TableCuts(slots=int32(1), lengths=int32(2))
    assert message.table_appends == worker.TableAppends(slots=int32(3, 3), blocks=int32(5, 6))
    assert message.given_tokens == worker.GivenTokens(slots=int32(1), tokens=int32(0))
    assert message.swap_out == worker.SwapOut(blocks=int32(0, 9), host_slots=int32(8, 7))
    assert message.swap_in == worker.SwapIn(host_slots=int32(6), blocks=int32(10))
    assert message.copies == worker.Copies(sources=int32(11), targets=int32(12))
    assert message.rows == worker.Rows(
        slots=int32(3, 1), starts=int32(0, 8), counts=int32(3, 3), samples=b"\x01\x03"
    )
    assert message.draft_tokens == int32(-1, -1)
    (slot,) = message.new_slots
    assert (slot.slot, slot.sequence_index, slot.prompt_length) == (3, 1, 2)
    assert (slot.tokens, slot.block_ids) == (int32(1, 2, 300), int32(9))
    assert (slot.sampling, slot.traceparent) == (sampling, "00-ab-cd-01")


def test_the_core_s_plan_has_the_fields_of_the_message_in_their_order() -> None:
    """`wire` finds them by their names."""
    empty = StepPlan(1)
    fields = worker.StepPlan.DESCRIPTOR.fields
    assert list(empty._fields) == [field.name for field in fields]
    for name, value in zip(empty._fields, empty, strict=True):
        if value and name != "step":
            columns = worker.StepPlan.DESCRIPTOR.fields_by_name[name].message_type.fields
            assert list(value._fields) == [column.name for column in columns]
    assert wire.plan_to(empty) == worker.StepPlan(step=1), "an empty table is left out"


def test_a_plan_for_256_decodes_is_small() -> None:
    rows = tuple(range(256))
    plan = StepPlan(1, rows=Rows(rows, rows, (1,) * 256, (1,) * 256))
    assert wire.plan_to(plan).ByteSize() < 4096


def test_a_result_with_logprobs() -> None:
    message = StepResult(
        step=3,
        tokens=int32(5, 6, -1),
        logprobs=Logprobs(
            entries=int32(0, 1),
            logprobs=struct.pack("<2f", -0.5, -1.5),
            top_counts=int32(0, 2),
            top=RankedTokens(tokens=int32(6, 8), logprobs=struct.pack("<2f", -1.5, -2.5)),
        ),
        errors=[RowError(row=2, message="why"), RowError(row=0, message="no text", grammar=True)],
    )
    result, logprobs = wire.result_from(message)
    assert (result.step, result.tokens, result.errors) == (3, [5, 6, -1], {2: "why", 0: "no text"})
    assert list(result.at_limits) == [0]
    assert (logprobs[0].logprob, logprobs[0].top_tokens) == (-0.5, b"")
    assert (logprobs[1].top_tokens, logprobs[1].top_logprobs) == (int32(6, 8), struct.pack("<2f", -1.5, -2.5))
    gains = [
        Gain(None, 2, 7, Finish.STOP, 5),  # type: ignore[arg-type]
        Gain(None, 4, 5, Finish.NOT_FINISHED, 0),  # type: ignore[arg-type]
        Gain(None, 4, 6, Finish.LENGTH, 1),  # type: ignore[arg-type]
    ]
    first, second = wire.response_to(gains, logprobs).deltas
    assert (first.index, first.tokens, first.finish_reason) == (2, int32(7), FinishReason.STOP)
    assert not first.logprobs
    assert (second.index, second.tokens, second.finish_reason) == (4, int32(5, 6), FinishReason.LENGTH)
    assert [each.logprob for each in second.logprobs] == [-0.5, -1.5]


def test_forced_tokens() -> None:
    runs = worker.ForcedRuns(rows=int32(1, 4), starts=int32(9, 3), counts=int32(2, 3))
    message = StepResult(step=1, forced=worker.Forced(runs=runs, tokens=int32(5, 6, 7, 8, 9)))
    result, _ = wire.result_from(message)
    assert result.forced == {1: Forced(9, [5, 6]), 4: Forced(3, [7, 8, 9])}


def logprobs_of(count: int, top: RankedTokens) -> Logprobs:
    return Logprobs(entries=int32(0), logprobs=b"1234", top_counts=int32(count), top=top)


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": b"abc"},
        {"logprobs": Logprobs(entries=int32(0))},
        {"logprobs": Logprobs(entries=int32(0), logprobs=b"1234")},
        {"logprobs": logprobs_of(2, RankedTokens(tokens=int32(1)))},
        {"logprobs": logprobs_of(2, RankedTokens(tokens=int32(1), logprobs=b"1234"))},
        {"logprobs": logprobs_of(-1, RankedTokens())},
        {"candidates": Candidates(entries=int32(0), counts=int32(1))},
        {"candidates": Candidates(counts=int32(0))},
        {"forced": worker.Forced(tokens=int32(1))},
        {"forced": worker.Forced(runs=worker.ForcedRuns(rows=int32(0)))},
    ],
)
def test_a_malformed_result_is_a_fault(fields: dict[str, Any]) -> None:
    with pytest.raises(WorkerFault):
        wire.result_from(StepResult(step=1, **fields))


def test_a_worker_with_nothing_to_offer_is_a_fault() -> None:
    with pytest.raises(WorkerFault, match="num_blocks"):
        wire.limits_from(WorkerReady(block_size=16))


def test_embeddings() -> None:
    message = StepResult(
        step=1, embeddings=Embeddings(rows=int32(0, 2), vectors=struct.pack("<4f", 1, 2, 3, 4))
    )
    found, _ = wire.result_from(message)
    assert found.embeddings == {0: struct.pack("<2f", 1, 2), 2: struct.pack("<2f", 3, 4)}


def test_vectors_of_each_token() -> None:
    message = Embeddings(rows=int32(0, 2, 3), counts=int32(1, 3, 2), vectors=struct.pack("<12f", *range(12)))
    found, _ = wire.result_from(StepResult(step=1, embeddings=message))
    vectors = {0: range(2), 2: range(2, 8), 3: range(8, 12)}
    assert found.embeddings == {row: struct.pack(f"<{len(some)}f", *some) for row, some in vectors.items()}


@pytest.mark.parametrize("counts", [(3,), (1, 1, 1), (3, 0), (2, -1), (2, 2)])
def test_counts_that_do_not_fit_their_vectors(counts: tuple[int, ...]) -> None:
    message = Embeddings(rows=int32(0, 2), counts=int32(*counts), vectors=bytes(4 * 3))
    with pytest.raises(WorkerFault, match="malformed arrays"):
        wire.result_from(StepResult(step=1, embeddings=message))


@pytest.mark.parametrize("data", [b"", bytes(9), bytes(4), bytes(6)])
def test_embeddings_that_do_not_fit_their_rows(data: bytes) -> None:
    with pytest.raises(WorkerFault, match="embeddings"):
        wire.result_from(StepResult(step=1, embeddings=Embeddings(rows=int32(0, 2), vectors=data)))


def test_a_fork_does_not_carry_its_parents_rules_again() -> None:
    rules = TokenRules(allowed_tokens=range(4000), min_tokens=3)
    request = Request("r", array("i", [1, 2]), sampling=SamplingParams(seed=5, rules=rules))
    tokens = array("i", [2])
    fork = NewSlot(1, request, 1, tokens, [9], forked_from=0, forked_tokens=1)
    whole, child = wire.plan_to(StepPlan(1, new_slots=(NewSlot(0, request, 0, tokens, [1]), fork))).new_slots
    assert whole.sampling.rules == rules
    assert child.sampling == SamplingParams(seed=5, rules=TokenRules())
    assert child.sampling.HasField("rules")
    assert not child.sampling.HasField("grammar")


def test_images_go_to_a_worker_with_each_slot_but_forks() -> None:
    file = ImageFile(name="a", digest=bytes(32))
    images = [PromptImage(file=file, position=0, tokens=3, rows=1, columns=2)]
    images.append(PromptImage(file=file, position=3, tokens=1, rows=1, columns=1))
    start = Start(prompt_tokens=int32(1, 2, 3, 4), n=2, sampling=greedy(), images=images)
    start.images[0].data = b"which nobody but a worker sets"
    request = request_from(start, "")
    tokens = array("i", [1, 2, 3, 4, 5])
    fork = NewSlot(1, request, 1, tokens[4:], [9], forked_from=0, forked_tokens=4)
    slots = (NewSlot(0, request, 0, tokens, [1]), fork, NewSlot(2, request, 1, tokens, [2]))
    found = [list(slot.images) for slot in wire.plan_to(StepPlan(1, new_slots=slots)).new_slots]
    assert found == [images, [], images]


def test_what_a_request_takes_in_a_plan() -> None:
    """Besides its tokens, so that a plan does not become larger than a message."""
    images = [PromptImage(file=ImageFile(name="a" * 64, digest=bytes(32)), tokens=2, rows=1, columns=2)]
    sampling = SamplingParams(rules=TokenRules(allowed_tokens=range(4000)), grammar=Grammar(text="x" * 500))
    start = Start(prompt_tokens=int32(1, 2), n=1, sampling=greedy(), images=images)
    start.sampling.MergeFrom(sampling)
    request = request_from(start, "")
    new = NewSlot(0, request, 0, request.prompt, [1])
    plan = StepPlan(1, new_grammars=(NewGrammar(1, request.grammar),), new_slots=(new,))
    bare = StepPlan(1, new_slots=(replace(new, request=replace(request, images=(), sampling=greedy())),))
    took = wire.plan_to(plan).ByteSize() - wire.plan_to(bare).ByteSize()
    assert request.plan_bytes <= took < request.plan_bytes + 20


@pytest.mark.parametrize("name", ["images", "headless"])
def test_what_a_worker_says_of_its_model(name: str) -> None:
    numbers = ("num_blocks", "block_size", "max_slots", "max_model_len", "max_step_tokens", "vocab_size")
    for value in (False, True):
        ready = WorkerReady(**{name: value}, **dict.fromkeys(numbers, 8))
        assert getattr(wire.limits_from(ready), name) is value


def test_a_plan_carries_a_grammar_once() -> None:
    """Else the samples of one request would make a message that is larger than any can be."""
    grammar = Grammar(text="x" * 60_000, end_tokens=[4])
    start = Start(prompt_tokens=int32(1, 2), n=1, sampling=greedy(seed=5), stop=StopConditions(max_tokens=1))
    start.sampling.grammar.CopyFrom(grammar)
    request = request_from(start, "")
    tokens = array("i", [2])
    slots = tuple(NewSlot(slot, request, slot, tokens, [9], grammar=7) for slot in range(128))
    plan = StepPlan(1, (), (3, 5), (NewGrammar(7, request.grammar),), slots)
    message = wire.plan_to(plan)
    assert message.ByteSize() < 2**17
    assert message.dropped_grammars == int32(3, 5)
    assert list(message.new_grammars) == [worker.NewGrammar(number=7, grammar=grammar)]
    assert {new.grammar for new in message.new_slots} == {7}
    assert all(new.sampling == greedy(seed=5) for new in message.new_slots)
    assert start.sampling.grammar == grammar, "what came is left as it is"


@pytest.mark.parametrize(("prompts", "length"), [(255, 4097), (33, 2**15), (10, 2**17)])
def test_a_plan_fits_into_a_message(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, prompts: int, length: int
) -> None:
    """Whoever waits for a prefix that another one computes gets it with all others that do."""
    monkeypatch.setattr("scheduler_svc.core.step_builder.MOST_NEW_NAMES", 2**30)  # which bounds most plans
    limits = {"num_blocks": 2**14, "block_size": 16, "max_slots": 256, "max_model_len": 2**18}
    fleet = Fleet(2**13)
    scheduler, _ = fleet.add_worker(fake.limits(**limits, max_step_tokens=2**13))
    for number in range(prompts):
        request = fake.request([1] * length, f"r{number}", max_tokens=2)
        fleet.accept(replace(request, sampling=greedy()))
    sizes = []
    while (plan := scheduler.plan()) is not None:
        sizes.append(wire.plan_to(plan).ByteSize())
        fleet.settle(scheduler, scheduler.complete(CoreResult(plan.step, [0] * sum(plan.rows.samples))))
    assert scheduler.idle
    assert 2**20 < max(sizes) < MAX_MESSAGE_BYTES
