"""Every shell command of the README, docs/operate.md and docs/use.md is run as it is written there.

In place of port 8000 stands a free one, and `~/models/llama` is the model that ships with Quire. What a test
cannot do is skipped, each with its reason.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ops.launcher.redis_server import free_port
from tests.support.deployment import ROOT, SHIPPED_MODEL

PAGES = ("README.md", "docs/operate.md", "docs/use.md")
FIRST = "On one machine"
"""Heading of the block that starts a deployment, looks at it and ends it."""
SKIPPED = {
    "docker ": "it needs a container engine: `make compose-test` tries the compose file",
    "sudo ": "it changes the machine",
    "kubectl ": "it needs a cluster: tests/unit/repository/test_chart.py looks at what the chart makes",
    "make ": "it installs packages, or runs these tests",
    "pip install ": "it installs packages: tests/e2e/test_wheel.py does that with what is there",
    "Qwen/": "it fetches from the Hub: tests/e2e/test_hub.py has a hub of its own",
    "TENSOR_PARALLEL": "it needs GPUs: tests/chaos/test_ranks.py runs ranks on CPUs",
    "python -m (gateway|tokenizer_svc|scheduler_svc|gpu_worker)$": "each stays: other tests start them so",
    "quire top  ": "it goes on until Ctrl-C: `--once` is run",
    "quire chat$": "it waits for somebody who types",
    "--port 819": "it is the first command again, twice",
    "QUIRE_RECORDINGS": "FILE is what another command prints: tests/unit/ops/cli/test_replay.py",
    "(ops.simulate.measure|bench serve)": "it measures for minutes",
}
"""Blocks in which a line has this, with the reason."""
TAKES_LONG = "quire (simulate|quantize)"
"""Blocks in which a line has this are run with TEST_COMMANDS=all only: they take most of a minute."""
LEFT_OUT = {"make ": SKIPPED["make "], "quire top  ": SKIPPED["quire top  "]}
"""Lines that are left out of the first block."""
STATUS = {"--max-time": 28}
"""Exit status of commands that do not end with 0: curl's when its time is up."""


@dataclass(frozen=True)
class Block:
    page: str
    heading: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is skipped; empty if it is run."""
        if re.search(TAKES_LONG, self.text) and os.environ.get("TEST_COMMANDS") != "all":
            return "it takes long: TEST_COMMANDS=all"
        found = (why for what, why in SKIPPED.items() if re.search(what, self.text, re.MULTILINE))
        return next(found, "")

    @property
    def starts(self) -> bool:
        """It starts a deployment of its own, and ends it."""
        return "quire up" in self.text

    @property
    def last(self) -> bool:
        """From then on requests need a key."""
        return "quire keys" in self.text


def blocks_of(page: str) -> list[Block]:
    heading, fence, lines, found = "", "", list[str](), list[Block]()
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if fence == "```sh":
                found.append(Block(page, heading, "\n".join(lines) + "\n"))
            fence, lines = "" if fence else line, []
        elif fence:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
REST = sorted((block for block in BLOCKS if block.heading != FIRST), key=lambda block: block.last)


class Machine:
    """A user's home, and a checkout that has been installed."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        checkout = home / "quire"
        (checkout / ".venv" / "bin").mkdir(parents=True)
        for name in ("ops", "docker-compose.yml"):
            (checkout / name).symlink_to(ROOT / name)
        (home / "models").mkdir()
        (home / "models" / "llama").symlink_to(SHIPPED_MODEL)
        tools = home / "bin"
        tools.mkdir()
        python = f'exec {sys.executable} "$@"'
        quire = f'exec {sys.executable} -m ops.cli.main "$@"'
        curl = f'exec {shutil.which("curl")} --fail-with-body "$@"'  # or it ends well after any answer
        for path, script in (
            *((checkout / ".venv" / "bin" / "quire", quire), (checkout / ".venv" / "bin" / "python", python)),
            *((tools / "quire", quire), (tools / "python3", python), (tools / "curl", curl)),
        ):
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        (checkout / "book.txt").write_text((ROOT / "docs" / "understand.md").read_text()[:20_000])
        arrivals = ({"at": number / 10, "prompt_tokens": 64, "output_tokens": 16} for number in range(20))
        (checkout / "requests.jsonl").write_text("".join(json.dumps(one) + "\n" for one in arrivals))
        self._checkout = checkout
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")},
            "HOME": str(home),
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": os.environ.get(
                "XDG_CACHE_HOME", str(Path.home() / ".cache")
            ),  # has the kernels
            "QUIRE_PORT": str(self.port),
            "QUIRE_KV_MEMORY": "64MiB",
            "QUIRE_THREADS": "1",
        }

    def run(self, script: str, **environment: str) -> str:
        """What a script prints. It must end well."""
        script = re.sub(r"(127\.0\.0\.1|localhost):8000", rf"\1:{self.port}", script)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self._checkout,
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )
        wanted = next((status for what, status in STATUS.items() if what in script), 0)
        assert done.returncode == wanted, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def wait_for_metrics(self) -> None:
        """Return once the gateway has metrics of the other processes, which write them every few seconds."""
        deadline = time.monotonic() + 60
        while (
            "\nvllm:num_requests" not in httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60).text
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With a deployment, which the first block starts and ends."""
    machine = Machine(tmp_path_factory.mktemp("home"))
    (block,) = (block for block in blocks_of("docs/operate.md") if block.heading == FIRST)
    lines = [line for line in block.text.splitlines() if not any(re.search(what, line) for what in LEFT_OUT)]
    up, status, down = lines
    try:
        machine.run(up)
        shown = machine.run(status)
        assert shown.count("  worker ") == 2, shown
        machine.wait_for_metrics()
        yield machine
    finally:
        machine.run(down)


@pytest.mark.parametrize("block", REST, ids=[f"{one.page}:{one.heading}" for one in REST])
def test_the_commands_of_the_pages(request: pytest.FixtureRequest, block: Block) -> None:
    if block.reason:
        pytest.skip(block.reason)
    machine: Machine = request.getfixturevalue("machine")
    if block.starts:
        machine.run(block.text, QUIRE_PORT=str(free_port()), XDG_STATE_HOME=str(machine.home / "other"))
    else:
        machine.run(block.text)


def test_what_is_skipped_is_there() -> None:
    for what in (*SKIPPED, TAKES_LONG):
        assert any(re.search(what, block.text, re.MULTILINE) for block in BLOCKS), what
    assert {block.page for block in REST if not block.reason} == set(PAGES)
