"""When a worker counts as stalled: by looks, five seconds apart."""

from scheduler_svc.progress import Progress


def looks_until_stalled(progress: Progress, most: int = 1000) -> int:
    for looks in range(1, most):
        progress.look(owes=True)
        if progress.stalled:
            return looks
    return most


def test_it_takes_half_a_minute_of_silence_and_less_than_a_minute() -> None:
    assert looks_until_stalled(Progress()) == 7


def test_a_word_is_enough() -> None:
    progress = Progress()
    for _ in range(6):
        progress.look(owes=True)
    progress.said()
    assert looks_until_stalled(progress) == 7
    progress.said()
    assert not progress.stalled


def test_who_owes_nothing_may_be_silent() -> None:
    progress = Progress()
    for owes in (True, False) * 20:
        progress.look(owes)
    assert not progress.stalled
    looks_until_stalled(progress)
    progress.look(owes=False)
    assert not progress.stalled


def test_who_has_always_been_slow_has_three_times_as_long() -> None:
    progress = Progress()
    progress.said(40)
    progress.said(1)
    assert looks_until_stalled(progress) == 1 + 120 / 5
