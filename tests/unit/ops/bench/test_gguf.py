"""A GGUF file is timed by both, with the same threads and tokens."""

import sys
from pathlib import Path

import pytest

from gpu_worker.machine.cores import usable
from ops.bench import gguf, recurrent
from ops.bench.rig import shapes
from ops.bench.rig.formats import made_in
from ops.bench.rig.shapes import Shape

PEER = """#!{python}
import json, sys
print("as it loads")
print(json.dumps({{"1 users": 8.0, "2 users": 16.0, "prompt of 20": 4.0, "told": sys.argv[1:]}}))
"""


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gguf, recurrent):
        monkeypatch.setattr(module, "USERS", (1, 2))
        monkeypatch.setattr(module, "PROMPT", 9)
        monkeypatch.setattr(module, "LONG", 20)
        monkeypatch.setattr(module, "STEPS", 4)
    monkeypatch.setattr(recurrent, "ANSWER", 8)
    monkeypatch.setattr(recurrent, "VOCABULARY", 500)


@pytest.mark.usefixtures("_small")
def test_both_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(shapes.SHAPES, "small", Shape(256, 2, 4, 2, 256, 600, tied=True))
    file = made_in("q8_0", "small", folder=tmp_path)
    told: list[list[str]] = []

    def peer(python: str, bindings: str, given: Path, seed: int) -> dict[str, float]:
        told.append([python, bindings, str(given), str(seed)])
        return {"1 users": 8.0, "2 users": 16.0, "prompt of 20": 4.0}

    monkeypatch.setattr(gguf, "peer", peer)
    found = gguf.compare(file, "theirs", "llama_cpp", 2, 0)
    assert told == [["theirs", "llama_cpp", str(file), "1"], ["theirs", "llama_cpp", str(file), "2"]]
    assert found.keys() == {"1 users", "2 users", "prompt of 20"}
    for each in found.values():
        assert each["quire"] > 0
        assert each["times"] == pytest.approx(each["llama_cpp"] / each["quire"], rel=0.2)


@pytest.mark.usefixtures("_small")
def test_the_peer_has_all_cores(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PEER.format(python=sys.executable))
    python.chmod(0o755)
    told = gguf.peer(str(python), "ik_llama_cpp", Path("x.gguf"), 3)["told"]
    assert told[:2] == ["-m", "ops.bench.engines.peers.llama_steps"]
    assert {f"--threads={len(usable())}", "--prompt=9", "--long=20", "--steps=4", "--seed=3"} < set(told)
    assert told[told.index("--bindings") + 1] == "ik_llama_cpp"
    assert told[-3:] == ["--users", "1", "2"]
