"""Changes put together are what was told, and can be told again."""

import json

from gateway.upstream.picture import STEPS_KEPT, Picture, change_of
from proto.arrays import pack
from proto.inside_pb2 import Look, Totals


def look() -> Look:
    """A worker with a request in two of its blocks."""
    found = Look(scheduler="scheduler-1", totals=Totals(prompt_tokens=40, cached_tokens=16))
    worker = found.workers.add(number=1, blocks=pack([0, 1]), states=pack([3, 2]), evicted=pack([7]))
    worker.limits.blocks, worker.limits.block_size = 64, 16
    worker.sequences.add(
        number=5,
        request_id="r",
        tenant="north",
        prompt_tokens=20,
        limit=30,
        state="prefill",
        tokens=20,
        added_blocks=pack([0, 1]),
        added_tokens=pack(range(20)),
    )
    worker.steps.add(number=1, chunks=1, prompt_tokens=16, copied_from=pack([3]), copied_to=pack([4]))
    return found


def later() -> Look:
    """The request goes on in another block; a block is empty again."""
    found = Look(scheduler="scheduler-1", totals=Totals(prompt_tokens=40, cached_tokens=16, waiting=2))
    worker = found.workers.add(number=1, blocks=pack([1, 2]), states=pack([0, 2]), host_used=3)
    worker.sequences.add(
        number=5,
        state="decode",
        tokens=21,
        computed=20,
        kept_blocks=1,
        added_blocks=pack([2]),
        kept_tokens=20,
    )
    return found


def test_no_token_is_told() -> None:
    (worker,) = change_of(look(), "m")["workers"]
    assert worker["limits"]["blocks"] == 64
    assert worker["steps"] == [
        {"number": 1, "chunks": 1, "prompt_tokens": 16, "copied_from": [3], "copied_to": [4]}
    ]
    assert worker["evicted"] == [7]
    assert "added_tokens" not in worker["sequences"][0]
    assert change_of(look(), "m")["totals"]["cached_tokens"] == 16


def test_changes_add_up_and_are_told_again() -> None:
    picture = Picture()
    for each in (look(), later()):
        picture.apply(json.loads(json.dumps(change_of(each, "m"))))
    worker = picture.workers["scheduler-1", 1]
    assert worker.states == {0: 3, 2: 2}
    assert worker.host_used == 3
    assert worker.limits["block_size"] == 16
    (sequence,) = worker.sequences.values()
    assert sequence["blocks"] == [0, 2]
    assert (sequence["request_id"], sequence["state"], sequence["computed"]) == ("r", "decode", 20)
    assert picture.schedulers["scheduler-1"]["totals"]["waiting"] == 2
    again = Picture()
    for change in picture.whole():
        again.apply(change)
    assert again.whole() == picture.whole()


def test_what_is_gone_is_forgotten() -> None:
    picture = Picture()
    picture.apply(change_of(look(), "m"))
    ended = Look(scheduler="scheduler-1")
    ended.workers.add(number=1, gone=[5])
    picture.apply(change_of(ended, "m"))
    assert not picture.workers["scheduler-1", 1].sequences
    picture.apply(change_of(Look(scheduler="scheduler-1", lost=[1]), "m"))
    assert not picture.workers
    picture.apply(change_of(look(), "m"))
    picture.apply({"scheduler": "scheduler-1", "away": True})
    assert not picture.workers
    assert not picture.schedulers
    picture.apply(change_of(look(), "m"))
    picture.apply({"begin": True})
    assert not picture.workers


def test_only_the_newest_steps_are_told_again() -> None:
    picture = Picture()
    for number in range(2 * STEPS_KEPT):
        step = Look(scheduler="scheduler-1")
        step.workers.add(number=1).steps.add(number=number)
        picture.apply(change_of(step, "m"))
    steps = picture.workers["scheduler-1", 1].steps
    assert [step.get("number") for step in steps] == list(range(STEPS_KEPT, 2 * STEPS_KEPT))
