"""The wheel alone serves: installed in an environment of its own, started in an empty folder."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.launcher.redis_server import free_port
from tests.support.wheel import ROOT, build


def environment_without_the_repository(folder: Path) -> dict[str, str]:
    """Variables for a process that sees nothing of Quire but the wheel, and none of a user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "PYTHON"))}
    return kept | {"XDG_STATE_HOME": str(folder / "state"), "QUIRE_KV_MEMORY": "64MiB", "QUIRE_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in `environment`, and an empty folder `anywhere`.

    What Quire needs is found where the tests find it. The editable Quire there is not: only the files of path
    configuration that lie in an environment itself are read.
    """
    folder = tmp_path_factory.mktemp("wheel")
    environment = folder / "environment"
    for name in ("source", "anywhere"):
        (folder / name).mkdir()
    wheel = build(folder / "source")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = [
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        environment / "bin" / "python",
    ]
    subprocess.run([sys.executable, "-m", "uv", *install, wheel], check=True)
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Where the installed `quire up` serves."""
    port, environment = free_port(), environment_without_the_repository(folder)

    def quire(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [folder / "environment" / "bin" / "quire", *arguments, "--port", str(port)]
        return subprocess.run(
            command, cwd=folder / "anywhere", env=environment, capture_output=True, text=True, timeout=280
        )

    started = quire("up", "--detach")
    assert started.returncode == 0, started.stdout + started.stderr
    yield f"http://127.0.0.1:{port}"
    assert quire("down").returncode == 0


def test_it_answers_with_the_model_inside(url: str) -> None:
    request = {"prompt": "The fox", "max_tokens": 8, "model": "quire-tiny"}
    answer = httpx.post(f"{url}/v1/completions", json=request, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_its_pages_are_inside(url: str) -> None:
    page = httpx.get(url)
    assert page.status_code == 200
    assert "<script" in page.text


def test_nothing_is_the_repository_s(folder: Path, url: str) -> None:
    logs = "".join(path.read_text() for path in (folder / "state").rglob("*.log"))
    assert str(ROOT) not in logs
    code = "import ops, gpu_worker.kernels.cpu.build as kernels; print(ops.__file__, kernels.SOURCES)"
    found = subprocess.run(
        [folder / "environment" / "bin" / "python", "-c", code],
        cwd=folder / "anywhere",
        env=environment_without_the_repository(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(path.startswith(str(folder / "environment")) for path in found.stdout.split())
    assert not list((folder / "anywhere").iterdir())
