"""However a text is cut into deltas when it is computed again, its events go on where they ended."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.jobs.continuation import Continuation

ITEMS = ("Once upon a time", "❄", "a fox saw snow.")


def computed(cuts: list[int], number: int = 0) -> list[dict[str, Any]]:
    """The events of a response with these items. Each text comes twice, in pieces of the next size."""
    events: list[dict[str, Any]] = [{"type": "response.created"}, {"type": "response.in_progress"}]
    for text in ITEMS:
        events.append({"type": "response.output_item.added"})
        while text:
            size = cuts[number % len(cuts)]
            number += 1
            piece, text = text[:size], text[size:]
            events.append({"type": "response.output_text.delta", "delta": piece, "logprobs": list(piece)})
            events.append({"type": "response.reasoning_summary_text.delta", "delta": piece})
        events.append({"type": "response.output_text.done"})
    return events


def whole(events: list[dict[str, Any]]) -> list[Any]:
    """The events, with the deltas of one type between two others as one."""
    found: list[Any] = []
    for event in events:
        kind = event["type"]
        if not kind.endswith(".delta"):
            found += [kind, {}]
            continue
        text, logprobs = found[-1].get(kind, ("", []))
        found[-1][kind] = (text + event["delta"], logprobs + event.get("logprobs", []))
    return found


CUTS = st.lists(st.integers(1, 20), min_size=1, max_size=5)


@given(runs=st.lists(st.tuples(CUTS, st.integers(0, 40)), max_size=4), last=CUTS, restarts=st.booleans())
def test_runs_that_break_off_add_up_to_one(
    runs: list[tuple[list[int], int]], last: list[int], restarts: bool
) -> None:
    stored: list[dict[str, Any]] = [{"type": "response.created"}, {"type": "response.queued"}]
    so_far = Continuation()
    for event in stored:
        so_far.note(event)
    for cuts, length in [*runs, (last, 10**6)]:
        if restarts:  # in another process, which reads what is stored
            so_far = Continuation()
            for event in stored:
                so_far.note(event)
        so_far.again()
        for event in computed(cuts)[:length]:
            if (new := so_far.rest(event)) is not None:
                assert new["sequence_number"] == len(stored)
                stored.append(new)
        assert so_far.count == len(stored)
    assert whole(stored[2:]) == whole(computed([1000])[1:])
    assert all(event.get("delta", "x") for event in stored)


def test_the_last_type_is_known() -> None:
    so_far = Continuation()
    assert so_far.last == ""
    so_far.note({"type": "response.queued"})
    assert so_far.last == "response.queued"
