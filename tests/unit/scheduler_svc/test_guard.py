"""The guard around the core: the first error ends the process, and nothing is done after it."""

import pytest

from scheduler_svc.guard import Guard


def test_the_first_failure_is_told_at_once_and_closes_the_core() -> None:
    told: list[BaseException] = []
    guard = Guard(told.append)
    with guard:
        pass
    assert told == []
    with pytest.raises(ZeroDivisionError), guard, guard:
        raise ZeroDivisionError
    (error,) = told
    entered = False
    with pytest.raises(ZeroDivisionError) as caught, guard:
        entered = True
    assert caught.value is error
    assert not entered
    assert told == [error]
