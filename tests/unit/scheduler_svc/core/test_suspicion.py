"""What speaks for a request and what against it."""

from math import inf

from scheduler_svc.core.suspicion import MAX_DEATHS, Suspicion


def test_the_place_must_be_passed_by_a_position() -> None:
    suspicion = Suspicion({0: (8, 12), 2: (8, 9)})
    assert not suspicion.refuted_by([12, 0, 10])
    assert not suspicion.refuted_by([13, 0, 9])
    assert suspicion.refuted_by([13, 0, 10])
    assert suspicion.refuted_by([inf, 0, inf])


def test_deaths_count_at_one_place() -> None:
    suspicion = Suspicion({0: (8, 12)})
    for deaths in range(1, MAX_DEATHS + 1):
        suspicion = suspicion.after_death({0: (10, 11)}, gained=0)
        assert suspicion.deaths == deaths


def test_a_death_elsewhere_begins_the_count_anew() -> None:
    twice = Suspicion({0: (8, 12)}, deaths=2)
    assert twice.after_death({0: (0, 7)}, gained=0).deaths == 1
    assert twice.after_death({0: (12, 14)}, gained=0).deaths == 1
    assert twice.after_death({0: (13, 14)}, gained=1).deaths == 1
    assert twice.after_death({1: (8, 12)}, gained=0).deaths == 1
    assert twice.after_death({1: (0, 1), 0: (12, 13)}, gained=1).deaths == 3  # it goes on where it was


def test_two_tokens_are_progress() -> None:
    twice = Suspicion({0: (8, 9)}, deaths=2)
    assert twice.after_death({0: (9, 11)}, gained=1).deaths == 3
    assert twice.after_death({0: (9, 11)}, gained=2).deaths == 1


def test_what_dies_in_every_step_after_its_prompt_comes_no_further() -> None:
    """Each loss is a token later, since the prompt is computed again and gives one."""
    suspicion, place = Suspicion({0: (9, 10)}), 10
    for deaths in range(1, MAX_DEATHS + 1):
        assert not suspicion.refuted_by([place])
        suspicion = suspicion.after_death({0: (place, place + 1)}, gained=1)
        assert suspicion.deaths == deaths
        place += 1
