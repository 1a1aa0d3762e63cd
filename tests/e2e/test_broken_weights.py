"""Weights that are broken: the worker says so in one line, and everybody else stays and waits for another."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer, free_port
from ops.model_directory.settings import SHIPPED_DRAFT
from tests.support.deployment import ROOT, Deployment


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def pickled(path: Path) -> None:
    path.rename(path.with_name("pytorch_model.bin"))


BROKEN: dict[Callable[[Path], None], str] = {
    cut: "not a whole safetensors file",
    pickled: "weights only as pickles (pytorch_model.bin), which are never loaded",
}


def state(deployment: Deployment) -> dict[str, Any]:
    try:
        found: dict[str, Any] = httpx.get(f"{deployment.url}/health/ready", timeout=60).json()
        return found
    except httpx.TransportError:
        return {}


def test_the_others_stay_and_serve_as_soon_as_a_worker_can(redis_server: RedisServer, tmp_path: Path) -> None:
    model = tmp_path / "fox"
    shutil.copytree(SHIPPED_DRAFT, model)
    deployment = Deployment(redis_server, tmp_path, model)
    try:
        for service in ("scheduler_svc", "tokenizer_svc", "gateway"):
            deployment.spawn(service)
        for damage, message in BROKEN.items():
            shutil.copy(SHIPPED_DRAFT / "model.safetensors", model)
            damage(model / "model.safetensors")
            worker = deployment.spawn("gpu_worker")
            assert worker.wait(timeout=60) == 2, "no second try will mend it"
            last = (tmp_path / "gpu_worker.log").read_text().splitlines()[-1]
            assert last.startswith("quire worker: ")
            assert message in last
        wanting = {"status": "not ready", "models": [], "missing": ["worker of fox"]}
        deadline = time.monotonic() + 60
        while state(deployment) != wanting and time.monotonic() < deadline:
            time.sleep(0.1)
        assert state(deployment) == wanting
        for service in ("scheduler_svc", "tokenizer_svc", "gateway"):
            assert [process.poll() for process in deployment.processes[service]] == [None], service
        deployment.processes["gpu_worker"].clear()
        shutil.copy(SHIPPED_DRAFT / "model.safetensors", model)
        deployment.spawn("gpu_worker")
        deployment.wait_ready()
        body = {"model": "fox", "prompt": "Once upon a time", "max_tokens": 4}
        assert httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=60).status_code == 200
        deployment.assert_clean()
    finally:
        deployment.stop()


def test_the_launcher_repeats_the_worker_s_line_and_leaves_nothing(tmp_path: Path) -> None:
    model = tmp_path / "fox"
    shutil.copytree(SHIPPED_DRAFT, model)
    cut(model / "model.safetensors")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    command = ["up", "--model", str(model), "--port", str(port := free_port())]
    ended = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", *command],
        env=inherited | {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 1
    assert "worker ended with status 2 and does not come up" in ended.stderr
    assert "not a whole safetensors file" in ended.stderr.splitlines()[-1]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health/live")
