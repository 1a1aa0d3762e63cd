"""A grammar is announced when the last rank has compiled it."""

import io

from gpu_worker.ranks.announcements import Announcements, failure, place_of, record, records


def test_a_grammar_is_announced_once_by_the_last_rank() -> None:
    announced: list[int] = []
    announcements = Announcements(3, announced.append)
    for number in (1, 2, 1, 2, 2):
        announcements(number)
    assert announced == [2]
    announcements(1)
    assert announced == [2, 1]


def test_what_a_pipe_carries() -> None:
    """A rank that ends may leave half a record behind."""
    stream = io.BytesIO(record(0, 7) + record(5, 2**32 - 1) + record(5, 9)[:3])
    assert list(records(stream)) == [(0, 7), (5, 2**32 - 1)]


def test_a_failure_is_told_from_a_grammar() -> None:
    stream = io.BytesIO(record(2, 7) + failure(2, 7) + failure(3, 0))
    assert [(resets, place_of(number)) for resets, number in records(stream)] == [(2, None), (2, 7), (3, 0)]
