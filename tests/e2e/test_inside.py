"""What goes on inside a deployment is told, through a Redis that gives each process its rights."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.upstream.picture import Picture
from tests.support.deployment import Deployment

ROOT = Path(__file__).parents[2]


@contextmanager
def watching(deployment: Deployment) -> Iterator[Iterator[dict[str, Any]]]:
    """What a deployment tells; it ends with an error if nothing is told for a minute."""
    with httpx.stream("GET", f"{deployment.url}/v1/inside", timeout=60) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line)
        yield (json.loads(line.removeprefix("data: ")) for line in lines)


def test_a_request_is_seen_with_its_blocks_and_what_they_hold(deployment: Deployment) -> None:
    picture = Picture()
    body = {
        **{"model": "quire-tiny", "prompt": "Once there was an owl who lived in an old tree. " * 4},
        **{"max_tokens": 400, "ignore_eos": True, "n": 2},
    }
    with watching(deployment) as changes, ThreadPoolExecutor() as pool:
        for change in changes:
            picture.apply(change)
            if picture.workers and picture.processes["processes"]:
                break
        services = {each["service"] for each in picture.processes["processes"]}
        assert services >= {"gateway", "tokenizer", "scheduler", "worker"}
        asked = pool.submit(httpx.post, f"{deployment.url}/v1/completions", json=body, timeout=60)
        shared, steps, text, begun = 0, 0, "", False
        for change in changes:
            picture.apply(change)
            for (scheduler, number), worker in picture.workers.items():
                steps += len(worker.steps)
                shared = max(shared, sum(state >= 4 for state in worker.states.values()))
                for sequence in worker.sequences.values():
                    if not text and sequence["blocks"] and sequence["computed"] > 16:
                        place = f"{scheduler}/{number}/{sequence['blocks'][0]}"
                        block = httpx.get(f"{deployment.url}/v1/inside/{place}", timeout=60)
                        text = block.json().get("text", "") if block.status_code == 200 else ""
            running = any(worker.sequences for worker in picture.workers.values())
            if begun and not running:
                break
            begun = running
        assert asked.result().status_code == 200
    assert shared >= 2  # by both answers
    assert steps
    assert text.startswith("Once there was an owl")


def test_quire_top_shows_it_once(deployment: Deployment) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", "top", "--once", "--url", deployment.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "quire-tiny at" in done.stdout
    assert "blocks in tables" in done.stdout
