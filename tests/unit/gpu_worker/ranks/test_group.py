"""Which cores a rank takes."""

import pytest

from gpu_worker.ranks import group


def test_a_rank_has_cores_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two sockets whose cores alternate each of two ranks has one socket."""
    restricted: list[list[int]] = []
    monkeypatch.setattr(group, "usable", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(group, "neighbouring", lambda cores: sorted(cores, key=lambda core: core % 2))
    monkeypatch.setattr(group, "restrict_to", restricted.append)
    for rank in range(2):
        with group.own_cores(rank, 2, 2):
            pass
    assert restricted == [[0, 2], [0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]
