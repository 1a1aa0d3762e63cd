"""What batches compute and hold, against counts made by hand."""

import pytest

from ops.bench.load.workload import Question, Workload
from ops.bench.rig.accounting import Books, continuous_batch, static_batch
from scheduler_svc.core.limits import WorkerLimits

LIMITS = WorkerLimits(
    num_blocks=64, block_size=4, max_slots=8, max_model_len=100, max_step_tokens=32, vocab_size=4000
)


def asked(*lengths: tuple[int, int]) -> list[Question]:
    """Questions of (prompt tokens, answer tokens), no two alike."""
    return [Question([100 * n + i for i in range(p)], o) for n, (p, o) in enumerate(lengths, 1)]


def test_a_static_batch_computes_its_padding_and_its_ended_rows() -> None:
    books = static_batch(asked((2, 3), (5, 1)))
    # Two rows: 5 positions of prompt, then two steps of one each. The second row has ended by then.
    assert books.computed == 2 * 5 + 2 * 2
    assert books.needed == (2 + 2) + 5
    assert books.held == [10, 12, 14]
    assert books.used == [2 + 5, 3, 4]


def test_a_static_batch_of_one_wastes_nothing() -> None:
    books = static_batch(asked((7, 4)))
    assert books.efficiency == 1
    assert books.held == books.used == [7, 8, 9, 10]


def test_replayed_plans_hold_whole_blocks_and_no_padding() -> None:
    books = continuous_batch(asked((5, 3)), 1, LIMITS, step_tokens=32, depth=1)
    assert books.needed == books.computed == 7
    assert books.used == [5, 6, 7]
    assert books.held == [8, 8, 8]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("users", [1, 3, 20])
def test_replayed_plans_compute_what_is_needed_whatever_the_batch(depth: int, users: int) -> None:
    drawn = Workload((3, 17, 40), (1, 9)).conversations(12, seed=1)
    questions = [conversation[0] for conversation in drawn]
    books = continuous_batch(questions, users, LIMITS, step_tokens=32, depth=depth)
    assert books.needed == books.computed
    assert all(used <= held <= 64 * 4 for used, held in zip(books.used, books.held, strict=True))
    assert max(books.held) > 40


def test_a_prefix_that_is_cached_is_not_computed_again() -> None:
    questions = [Question([*range(200, 216), 900 + n], 4) for n in range(2)]
    books = continuous_batch(questions, 1, LIMITS, step_tokens=32, depth=1)
    assert books.computed == books.needed - 16
    assert max(books.held) == 20
    assert books.used == [17, 18, 19, 20] * 2


def test_a_summary_is_in_mebibytes() -> None:
    books = Books(needed=6, computed=8, held=[4, 8], used=[4, 2])
    assert books.summary(2**20) == {
        "batch_efficiency": 0.75,
        "kv_held_peak_mib": 8,
        "kv_held_mean_mib": 6,
        "kv_used_mean_mib": 3,
        "kv_wasted_peak_mib": 6,
        "kv_wasted_mean_mib": 3,
        "kv_wasted_share": 0.5,
    }
    assert (books + books).efficiency == 0.75
    assert (books + books).held == [4, 8, 4, 8]
