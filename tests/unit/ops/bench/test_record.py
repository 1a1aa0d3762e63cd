import json
from pathlib import Path

import pytest

from ops.bench.record import percentile, processor, write


@pytest.mark.parametrize(("share", "value"), [(0, 1.0), (0.5, 2.5), (1, 4.0), (0.25, 1.75)])
def test_percentiles_are_interpolated(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_a_result_says_where_it_comes_from(tmp_path) -> None:
    path = tmp_path / "deep" / "one.json"
    write(path, "one", 7, {"x": 1.5})
    found = json.loads(path.read_text())
    assert found["results"] == {"x": 1.5}
    assert found["seed"] == 7
    assert {"date", "machine", "versions", "commit"} <= set(found)
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["grpcio"]


@pytest.mark.parametrize(
    ("described", "name"),
    [
        (
            "cpu family : 25\nmodel : 17\nmodel name : AMD EPYC\n\n"
            "cpu family : 25\nmodel : 17\nmodel name : AMD EPYC\n",
            "AMD EPYC (family 25, model 17)",
        ),
        ("processor : 0\nBogoMIPS : 50.00\nCPU part : 0xd0c\n", ""),
    ],
)
def test_generations_of_processors_have_different_names(described: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(described)
    assert processor(tmp_path / "cpuinfo") == name
    assert processor(tmp_path / "none") == ""
