"""What a step samples, and what is kept of it, in the drawing's example and beside other rows."""

import numpy as np

from gpu_worker.kernels.rows import Rows
from gpu_worker.sampling.positions import sample_positions


def rows(*each: tuple[int, int, int, int, int]) -> Rows:
    """Rows of (index in the plan, slot, start, count, samples), fewest tokens first."""
    index, *others = np.array(each, np.int32).T
    return Rows(index.astype(np.intp), *others)


def test_rows_come_in_the_plans_order_with_their_drafts() -> None:
    found = sample_positions(rows((2, 5, 9, 1, 1), (1, 3, 0, 3, 0), (0, 4, 7, 4, 4)))
    assert found.rows.tolist() == [0, 2], "a row that does not sample is not there"
    assert found.counts.tolist() == [4, 1]
    assert found.row_slots.tolist() == [4, 5]
    assert found.slots.tolist() == [4, 4, 4, 4, 5]
    assert found.positions.tolist() == [8, 9, 10, 11, 10]
    assert found.logits_indices.tolist() == [4, 5, 6, 7, 0], "behind the tokens of the rows before"
    assert found.indices_in_row.tolist() == [0, 1, 2, 3, 0]
    assert found.firsts.tolist() == [0, 4]
    assert found.verify
    assert not sample_positions(rows((0, 5, 9, 1, 1))).verify


def test_kept_up_to_the_first_wrong_draft() -> None:
    found = sample_positions(rows((1, 5, 9, 1, 1), (2, 3, 2, 3, 3), (0, 4, 7, 4, 4)))
    b, c, d, x = 11, 12, 13, 14
    sampled = np.array([b, c, x, 0, 20, 7, 8, 9])
    drafts = np.array([b, c, d, -1, -1, 7, 8, -1])
    kept = found.kept(sampled, drafts)
    assert kept.tolist() == [3, 1, 3], (
        "two drafts and the token after them; no drafts; all drafts and one more"
    )
    assert found.among(kept).tolist() == [True, True, True, False, True, True, True, True]
