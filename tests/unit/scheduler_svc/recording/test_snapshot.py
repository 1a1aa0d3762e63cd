"""Copies of values. `test_tape.py` has whole schedulers of them."""

import json
from array import array
from collections import OrderedDict, deque
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from proto.sampling import greedy
from scheduler_svc.core.account import Account
from scheduler_svc.core.blocks import BlockPool, BlockWatch
from scheduler_svc.core.draft_state import DraftState
from scheduler_svc.core.plan import Rows
from scheduler_svc.core.policies import RoundRobin
from scheduler_svc.core.request import Finish
from scheduler_svc.core.sequence import SequenceGroup, State
from scheduler_svc.recording.snapshot import decode, take


def again(value: Any, **named: bool) -> Any:
    return decode(take(value, **named).encode())


def test_every_type_comes_back() -> None:
    value = {
        "scalars": [None, True, 3, -0.5, float("inf"), "ü", b"\0\xff"],
        "series": [(1, ("a", b"b")), {2, 3}, frozenset({4}), deque([5, [6]])],
        "numbers": array("i", [1, -2]),
        "order": OrderedDict([(b"z", 1), (b"a", None)]),
        7: [Finish.STOP, State.DECODE],
        "plan": Rows((1,), (2,), (3,), (4,)),
        "sampling": greedy(temperature=0.5, seed=9),
    }
    found = again(value)
    assert found == value
    assert type(found["series"][3]) is deque
    assert type(found["order"]) is OrderedDict
    assert found[7][0] is Finish.STOP
    assert type(found["plan"]) is Rows


def test_a_copy_does_not_change_with_the_original() -> None:
    tokens, names = array("i", [1]), {b"a": [1]}
    copy = take([tokens, names])
    tokens.append(2)
    names[b"a"].append(2)
    assert decode(copy.encode()) == [array("i", [1]), {b"a": [1]}]


def test_one_object_stays_one_object_and_may_refer_to_itself() -> None:
    parent = Account("t")
    parent.members["u"] = Account("u", parent, 3)
    first, second = again([parent, parent.members["u"]])
    assert first.members["u"] is second
    assert second.parent is first
    assert (second.name, second.number) == ("u", 3)


def test_what_counts_goes_on_counting() -> None:
    policy, numbers = RoundRobin(), count(4)
    queue = policy.queue
    next(numbers)
    other, other_queue, found = again([policy, queue, numbers])
    assert [next(found), next(numbers)] == [5, 5]
    made = other_queue()
    assert made._turns is other._turns


def test_a_group_goes_without_its_account_and_its_watch(fake: SimpleNamespace) -> None:
    group = SequenceGroup(fake.request([1, 2]), 5, lambda sequence: None)
    group.account = Account("u", Account("t"))
    found = again(group, accounts=False)
    assert (found.watch, found.account, found.arrival) == (None, None, 5)
    assert found.sequences[0].group is found
    assert again(group).account.parent.name == "t"


def test_what_is_left_out_is_made_anew(fake: SimpleNamespace) -> None:
    group = SequenceGroup(fake.request([1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3]), 1)
    (sequence,) = group.sequences
    sequence.draft_state = DraftState(8)
    guessed = sequence.draft_state.lookup.guess(sequence.tokens, 4)
    sequence.tokens.extend([5, 6])
    lookup = again(group).sequences[0].draft_state.lookup
    assert vars_of(lookup) == vars_of(sequence.draft_state.lookup)
    assert lookup.guess(sequence.tokens[:11], 4) == guessed == [9, 1, 2, 3]
    pool = BlockPool(2)
    pool.watches.append(BlockWatch())
    assert again(pool).watches == []


def vars_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="pathlib"):
        take([__import__("pathlib").PurePath("x")])


@pytest.mark.parametrize(
    "nodes",
    [
        [["object", "blocks:Sequence", [], []]],  # which blocks imports, and does not define
        [["object", "blocks:ON_HOST", [], []]],
        [["object", "none:None", [], []]],
        [["enum", "account:Account", "name"]],
        [["named", "account:Account", ["x"]]],
        [["method", [1], "append"], ["list", []]],
        [["tuple", [[0]]]],
        [["list", [[7]]]],
        [["no such kind"]],
        {},
        3,
    ],
)
def test_nothing_else_becomes_an_object(nodes: Any) -> None:
    with pytest.raises(ValueError, match=r"no snapshot|no such class|no method|not enough values"):
        decode(json.dumps(nodes).encode())
