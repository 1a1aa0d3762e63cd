"""`quire up` with a model by id: fetched once and served; the second time without the hub."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ops.launcher.redis_server import free_port
from tests.support.deployment import ROOT, SHIPPED_MODEL
from tests.support.hub import serving


def up(tmp_path: Path, endpoint: str, port: int) -> "subprocess.Popen[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    ours = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "HF_HOME": str(tmp_path / "home"),
        "HF_ENDPOINT": endpoint,
        "PYTHONPATH": str(ROOT),
        "QUIRE_KV_MEMORY": "64MiB",
        "QUIRE_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ops.cli.main", "up", "--model", "forest/fox@v2", "--port", str(port)],
        env=inherited | ours,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_fetched_and_served_and_served_again_without_the_hub(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED_MODEL, tmp_path / "hub" / "forest" / "fox")
    body = {"model": "fox", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    texts = []
    with serving(tmp_path / "hub") as hub:
        endpoints = [hub.url, f"http://127.0.0.1:{free_port()}"]
        for endpoint in endpoints:
            port = free_port()
            launcher = up(tmp_path, endpoint, port)
            assert launcher.stdout is not None
            try:
                seen = []
                for line in launcher.stdout:
                    seen.append(line)
                    if "stops it" in line:
                        break
                else:
                    pytest.fail("".join(seen))
                answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
                texts.append(answer.json()["choices"][0]["text"])
            finally:
                launcher.terminate()
                launcher.communicate(timeout=60)
        assert set(hub.sent.values()) == {1}
    assert texts[0] == texts[1] != ""


def test_a_model_that_nobody_has(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    with serving(tmp_path / "hub") as hub:
        output, _ = up(tmp_path, hub.url, free_port()).communicate(timeout=200)
    last = output.splitlines()[-1]
    assert last.startswith("quire up: forest/fox@v2: there is no such directory, and http://127.0.0.1")
