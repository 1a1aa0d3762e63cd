"""How many drafts must hold for a step to pay."""

import pytest

from scheduler_svc.core.draft_cost import DraftCost


def test_at_first_drafts_cost_nothing() -> None:
    cost = DraftCost(8)
    assert cost.due([5], 4) == 0
    cost.learn([5], [5], 2000)  # nobody knows what it takes without
    assert cost.due([5], 4) == 0


@pytest.mark.parametrize(("duration_us", "due"), [(1000, 0), (1100, 0.1), (3000, 2), (5000, 4), (900, 0)])
def test_one_alone_pays_for_the_time_that_its_drafts_take(duration_us: int, due: float) -> None:
    cost = DraftCost(8)
    cost.learn([1], [1], 1000)
    for _ in range(60):
        cost.learn([5], [5], duration_us)
    assert cost.due([5], 4) == pytest.approx(due, abs=1e-4)
    assert cost.due([3], 2) == pytest.approx(due / 2, abs=1e-4)


def test_drafts_beside_others_pay_for_the_time_of_all() -> None:
    """Four decodes take 1 ms, and 1.5 ms with eight drafts: as long as two tokens of plain steps."""
    cost = DraftCost(8)
    cost.learn([1] * 4, [1] * 4, 1000)
    for _ in range(60):
        cost.learn([5, 5, 1, 1], [5, 5, 1, 1], 1500)
    assert cost.due([3] * 4, 8) == pytest.approx(2, abs=1e-4)
    # Who has no drafts gets a step meanwhile.
    assert cost.due([5, 5, 1, 1], 8) == pytest.approx(3, abs=1e-4)
    assert cost.due([5, 5], 8) == 0  # of two decodes nothing is known


def test_what_says_nothing_is_not_learned() -> None:
    cost = DraftCost(2)
    cost.learn([1], [1], 1000)
    for counts, samples, duration_us in (
        ([5], [5], 0),  # an unknown time
        ([5, 64], [5, 0], 9000),  # a prompt, of which more is to come
        ([5, 64], [5, 1], 9000),  # a prompt's last chunk
        ([], [], 100),
        ([5] * 3, [5] * 3, 9000),  # more sequences than get drafts
    ):
        cost.learn(counts, samples, duration_us)
    assert cost.due([5], 4) == 0
    assert cost.due([5] * 3, 4) == 4
