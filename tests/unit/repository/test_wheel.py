"""What an installed Quire consists of: what serves, and nothing that measures or trains."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.wheel import ROOT, build


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    unpacked = tmp_path_factory.mktemp("installed")
    with ZipFile(build(tmp_path_factory.mktemp("source"))) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_what_serves_is_in_it(installed: Path) -> None:
    for path in (
        "proto/worker.proto",
        "proto/worker_pb2.py",
        "proto/rpc/client.py",
        "gateway/__main__.py",
        "tokenizer_svc/__main__.py",
        "scheduler_svc/core/scheduler.py",
        "gpu_worker/kernels/cpu/src/simd.h",
        "gpu_worker/kernels/cpu/src/linear.cpp",
        "ops/cli/main.py",
        "ops/launcher/launch.py",
        "ops/runtime/settings.py",
        "ops/tiny_model/model/model.safetensors",
        "ops/tiny_model/draft/tokenizer.json",
    ):
        assert (installed / path).is_file(), path
    static = {path.relative_to(ROOT) for path in (ROOT / "gateway").rglob("*.*") if path.suffix != ".pyc"}
    assert all((installed / path).is_file() for path in static)


def test_what_measures_trains_or_tests_is_not(installed: Path) -> None:
    for path in (
        "ops/bench",
        "ops/simulate",
        "ops/images",
        "ops/watch",
        "ops/cli/tools",
        "ops/tiny_model/training",
        "tests",
        "docs",
    ):
        assert (ROOT / path).is_dir(), path
        assert not (installed / path).exists(), path


@pytest.mark.parametrize("tool", ["bench", "simulate"])
def test_its_command_line_says_where_the_tools_are(installed: Path, tool: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", tool, "--help"],
        cwd=installed,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert f"`quire {tool}` is not part of the installed package" in line
    assert "make install" in line


def test_its_command_line_does_what_is_left(installed: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", "up", "--help"],
        cwd=installed,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert "usage: quire up" in answer.stdout
