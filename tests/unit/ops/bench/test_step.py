"""How the chain of processes is told beside one process."""

from ops.bench.step import side_by_side


def test_turns_that_lost_cores_are_left_out_unless_all_did() -> None:
    turns = [(90.0, 100.0, 0.0), (10.0, 100.0, 0.2), (95.0, 100.0, 0.01), (97.0, 100.0, 0.0)]
    found = side_by_side(turns)
    assert found == {"turns": 3, "chain": 95, "in_process": 100, "ratio": [0.9, 0.95, 0.97]}
    assert side_by_side(turns[1:2]) == {"turns": 1, "chain": 10, "in_process": 100, "ratio": [0.1] * 3}
