"""The core's values as messages and back."""

import struct
from array import array
from typing import Any

import pytest

from proto.sampling_pb2 import FinishReason, SamplingParams
from proto.worker_pb2 import RowError, StepResult, WorkerReady
from scheduler_svc import wire
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.plan import Gain, NewSlot, Rows, StepPlan, TableAppends
from scheduler_svc.core.request import Finish, Request


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
            table_appends=TableAppends((3, 3), (5, 6)),
            rows=Rows((3, 1), (0, 8), (3, 1), (1, 0)),
        )
    )
    assert message.step == 7
    assert message.freed_slots == int32(4)
    assert (message.block_slots, message.block_ids) == (int32(3, 3), int32(5, 6))
    assert (message.row_slots, message.row_starts) == (int32(3, 1), int32(0, 8))
    assert (message.row_counts, message.row_samples) == (int32(3, 1), b"\x01\x00")
    (slot,) = message.new_slots
    assert (slot.slot, slot.sequence_index, slot.prompt_length) == (3, 1, 2)
    assert (slot.tokens, slot.block_ids) == (int32(1, 2, 300), int32(9))
    assert (slot.sampling, slot.traceparent) == (sampling, "00-ab-cd-01")


def test_a_plan_for_256_decodes_is_small() -> None:
    rows = list(range(256))
    plan = StepPlan(1, rows=Rows(rows, rows, (1,) * 256, (1,) * 256))
    assert wire.plan_to(plan).ByteSize() < 4096


def test_a_result_with_logprobs() -> None:
    message = StepResult(
        step=3,
        tokens=int32(5, 6, -1),
        logprob_entries=int32(0, 1),
        logprobs=struct.pack("<2f", -0.5, -1.5),
        top_counts=int32(0, 2),
        top_tokens=int32(6, 8),
        top_logprobs=struct.pack("<2f", -1.5, -2.5),
        errors=[RowError(row=2, message="why")],
    )
    result, logprobs = wire.result_from(message)
    assert (result.step, result.tokens, result.errors) == (3, (5, 6, -1), {2: "why"})
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


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": b"abc"},
        {"logprob_entries": int32(0)},
        {"logprob_entries": int32(0), "logprobs": b"1234"},
        {"logprob_entries": int32(0), "logprobs": b"1234", "top_counts": int32(2), "top_tokens": int32(1)},
    ],
)
def test_a_malformed_result_is_a_fault(fields: dict[str, Any]) -> None:
    with pytest.raises(WorkerFault):
        wire.result_from(StepResult(step=1, **fields))


def test_a_worker_with_nothing_to_offer_is_a_fault() -> None:
    with pytest.raises(WorkerFault, match="num_blocks"):
        wire.limits_from(WorkerReady(block_size=16))


def test_embeddings() -> None:
    message = StepResult(step=1, embedded_rows=int32(0, 2), embeddings=struct.pack("<4f", 1, 2, 3, 4))
    found, _ = wire.result_from(message)
    assert found.embeddings == {0: struct.pack("<2f", 1, 2), 2: struct.pack("<2f", 3, 4)}


@pytest.mark.parametrize("data", [b"", bytes(9), bytes(4), bytes(6)])
def test_embeddings_that_do_not_fit_their_rows(data: bytes) -> None:
    with pytest.raises(WorkerFault, match="embeddings"):
        wire.result_from(StepResult(step=1, embedded_rows=int32(0, 2), embeddings=data))
