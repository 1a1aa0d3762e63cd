"""`quire bench compare` with the shipped model: every competitor is real, the loads are small."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.model_directory.settings import SHIPPED_MODEL
from tests.support.deployment import Deployment

PROMPTS = 8, 40
OUTPUT = 6
ROUNDS = 2
NAMES = ["quire", "transformers static", "transformers continuous", "started", "running"]
STARTED = f"{sys.executable} -m ops.cli.main up --port {{port}} --model {{model}} --dtype {{dtype}}"


@pytest.fixture(scope="module")
def compared(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result file of one run; its drawings lie beside it."""
    folder = tmp_path_factory.mktemp("compare")
    arguments = (
        *("--dtype", "float32", "--concurrency", "1,2", "--requests", "2", "--rounds", str(ROUNDS)),
        *("--prompt-lengths", "8,40", "--output", str(OUTPUT), "--check", "--threads", "1"),
        *("--server", f"running={deployment.url}", "--start", f"started={STARTED}"),
        *("--start", f"broken={sys.executable} -c 'raise SystemExit(\"no such engine\")'"),
        *("--out", str(folder / "compare.json"), "--plots", str(folder)),
    )
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", "bench", "compare", *arguments],
        env=os.environ | {"QUIRE_THREADS": "1"},  # of the engine that is started with a command
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (folder / "compare.json").exists(), done.stderr
    results: dict[str, Any] = json.loads((folder / "compare.json").read_text())["results"]
    return results | {"status": done.returncode, "printed": done.stdout, "folder": str(folder)}


def test_who_is_asked_to_end_leaves_no_competitor(tmp_path: Path) -> None:
    """They rest stopped, so that none would end by itself."""
    start = f"late={sys.executable} -c 'import time; time.sleep(300)' {tmp_path}"
    command = (sys.executable, "-m", "ops.cli.main", "bench", "compare", "--without-transformers")
    own = subprocess.Popen([*command, "--dtype", "float32", "--start", start])
    try:

        def is_late(one: psutil.Process) -> bool:
            try:
                return str(tmp_path) in one.cmdline()
            except psutil.Error:  # it has ended, as a compiler does that a competitor has tried
                return False

        def begun() -> list[psutil.Process]:
            return [one for one in psutil.Process(own.pid).children(recursive=True) if is_late(one)]

        while not (late := begun()):
            assert own.poll() is None
            time.sleep(0.1)
        own.terminate()
        assert own.wait(60) == 143
        assert not late[0].is_running()
    finally:
        own.kill()


def test_every_answer_has_the_tokens_that_were_asked_for(compared: dict[str, Any]) -> None:
    assert [load["concurrency"] for load in compared["loads"]] == [1, 2]
    for load, requests in zip(compared["loads"], (2, 4), strict=True):
        assert load["requests_per_round"] == requests
        assert list(load["competitors"]) == [*NAMES[:3], "running", "started"]
        for found in load["competitors"].values():
            assert found["wrong"] == found["all"]["errors"] == 0
            assert found["all"]["requests"] == requests * ROUNDS
            assert found["all"]["output_tokens"] == requests * ROUNDS * OUTPUT
            assert found["all"]["prompt_tokens"] == requests * ROUNDS * sum(PROMPTS) // 2
            assert found["all"]["first_token"]["p50"] > 0
            assert found["all"]["between_tokens"]["p50"] > 0


def test_ratios_are_those_of_the_rounds(compared: dict[str, Any]) -> None:
    for load in compared["loads"]:
        ours = [one["output_rate"] for one in load["competitors"]["quire"]["rounds"]]
        for name, spread in load["ratios"].items():
            theirs = [one["output_rate"] for one in load["competitors"][name]["rounds"]]
            expected = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
            rate = spread["output_rate"]
            assert [rate["lowest"], rate["highest"]] == pytest.approx(expected, abs=1e-3)


def test_only_static_batching_computes_padding(compared: dict[str, Any]) -> None:
    alone, together = (load["competitors"] for load in compared["loads"])
    for name in NAMES[:3]:
        assert alone[name]["batch"]["batch_efficiency"] == 1
    for name in ("quire", "transformers continuous"):
        assert together[name]["batch"]["batch_efficiency"] == 1
    # Each batch of two has a row of 8 padded to 40, and both get 5 more computed.
    padded = (sum(PROMPTS) + 2 * (OUTPUT - 1)) / (2 * (max(PROMPTS) + OUTPUT - 1))
    assert together["transformers static"]["batch"]["batch_efficiency"] == pytest.approx(padded, abs=1e-4)
    assert together["transformers static"]["batch"]["kv_wasted_share"] > 0.3
    assert alone["started"]["batch"] is None


def test_quire_and_transformers_write_the_same(compared: dict[str, Any]) -> None:
    assert [one["with"] for one in compared["agreement"]] == NAMES[1:3]
    assert [one["same"] for one in compared["agreement"]] == [one["asked"] for one in compared["agreement"]]


def test_who_could_not_start_is_named(compared: dict[str, Any]) -> None:
    assert list(compared["absent"]) == ["broken"]
    assert "no such engine" in compared["absent"]["broken"]
    assert compared["status"] == 1
    assert "broken" in compared["printed"]
    drawn = {path.name for path in Path(compared["folder"]).glob("*.svg")}
    assert drawn == {"compare_throughput.svg", "compare_p99.svg", "compare_batches.svg"}
    assert compared["terms"]["model"] == SHIPPED_MODEL.name
