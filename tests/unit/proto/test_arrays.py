"""Arrays in messages: the contract's options say what is packed, and what is refused."""

import struct
from array import array
from types import SimpleNamespace

import pytest

from proto import arrays
from proto.arrays import FLOAT32, INT32, UINT8
from proto.worker_pb2 import Logprobs, NewSlot, RankedTokens, Rows, StepPlan, StepResult, SwapIn

NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("given", [NUMBERS, tuple(NUMBERS), array("i", NUMBERS), array("q", NUMBERS)])
def test_numbers_are_little_endian(given: list[int]) -> None:
    packed = arrays.pack(given)
    assert packed == struct.pack("<5i", *NUMBERS)
    assert arrays.unpack(packed).tolist() == NUMBERS
    assert b"".join(map(arrays.pack_one, NUMBERS)) == packed


def test_the_other_types() -> None:
    assert arrays.pack([0, 255], UINT8) == b"\0\xff"
    assert arrays.unpack(b"\0\xff", UINT8).tolist() == [0, 255]
    assert arrays.pack([0.5], FLOAT32) == struct.pack("<f", 0.5)
    assert arrays.unpack(struct.pack("<f", 0.5), FLOAT32).tolist() == [0.5]


@pytest.mark.parametrize(("numbers", "dtype"), [([2**31], INT32), ([256], UINT8), ([-1], UINT8)])
def test_a_number_that_does_not_fit(numbers: list[int], dtype: arrays.DType) -> None:
    with pytest.raises((struct.error, ValueError)):
        arrays.pack(numbers, dtype)


def test_half_a_number() -> None:
    with pytest.raises(arrays.ArrayError, match="5 bytes"):
        arrays.unpack(bytes(5))


def test_a_message_is_filled_by_name() -> None:
    rows = SimpleNamespace(slots=[1, 2], starts=[3, 4], counts=[5, 6], samples=[7, 8])
    message = Rows()
    arrays.fill(message, rows)
    expected = {name: struct.pack("<2i", *vars(rows)[name]) for name in ("slots", "starts", "counts")}
    assert message == Rows(samples=b"\7\10", **expected)


WRONG = {
    "an array": (StepPlan(freed_slots=b"abc"), "freed_slots: 3 bytes"),
    "a column": (StepPlan(rows=Rows(slots=bytes(6))), "rows.slots: 6 bytes"),
    "columns": (StepPlan(swap_in=SwapIn(blocks=bytes(8))), "swap_in: .* 0 host_slots, 2 blocks"),
    "bytes for int32": (
        StepPlan(rows=Rows(slots=bytes(4), starts=bytes(4), counts=bytes(4), samples=bytes(4))),
        "rows: .* 1 slots, 1 starts, 1 counts, 4 samples",
    ),
    "one of several": (
        StepPlan(new_slots=[NewSlot(), NewSlot(block_ids=b"a")]),
        "new_slots.block_ids: 1 byte",
    ),
    "a message within": (
        StepResult(logprobs=Logprobs(top=RankedTokens(tokens=bytes(4)))),
        "logprobs.top: .* 1 tokens, 0 logprobs",
    ),
}


@pytest.mark.parametrize(("message", "what"), WRONG.values(), ids=WRONG.keys())
def test_what_the_contract_does_not_allow_is_named(message: StepPlan | StepResult, what: str) -> None:
    with pytest.raises(arrays.ArrayError, match=what):
        arrays.check(message)


def test_arrays_of_a_message_that_is_no_table_may_differ_in_length() -> None:
    arrays.check(StepPlan(new_slots=[NewSlot(tokens=bytes(8), block_ids=bytes(4))], draft_tokens=bytes(4)))
    arrays.check(StepPlan())
