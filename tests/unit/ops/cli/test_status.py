"""What `quire status` shows of processes."""

import json
import os
from typing import Any

import pytest

from ops.cli import status
from ops.cli.main import main
from ops.cli.status import Process, process, row, whole
from ops.launcher.deployments import Deployment
from ops.runtime.identity import Identity
from proto.rpc import Lease

SERVICES = ("gateway", "tokenizer", "scheduler", "worker")


def test_what_the_lease_says_is_shown_and_what_it_no_longer_says_is_not() -> None:
    info = {"model": "tiny", "memory": "38 GB/s", "slow": "", "defaults": {"top_p": 0.9, "top_k": 5}}
    info |= {"adapters": ["sql", "poet"], "others": []}
    shown = row(process(Lease("worker-1", "worker", 2, info, pid=7, protocol=3), None))
    facts = "memory=38 GB/s defaults=top_p:0.9,top_k:5 adapters=sql,poet"
    assert shown == ("worker", "worker-1", "7", "3", "tiny", "", facts)


def test_the_load_is_shown() -> None:
    told = [
        ["vllm:num_requests_running", ["fox"], 12],
        ["vllm:num_requests_waiting", ["fox"], 3],
        ["quire:kv_blocks", ["fox", "held"], 1000],
        ["quire:kv_blocks", ["fox", "idle"], 500],
        ["quire:kv_blocks", ["fox", "empty"], 2500],
        ["quire:kv_blocks", ["fox", "shared"], 7],
    ]
    shown = process(Lease("scheduler-1", "scheduler", 1), json.dumps(told).encode())
    assert shown.load == {"running": 12, "waiting": 3, "blocks_held": 1000, "blocks": 4000}
    assert row(shown)[5] == "12 running, 3 waiting, 1,000 of 4,000 blocks held"


@pytest.mark.parametrize("snapshot", [b"", b"1", b"[1]", b"[]"])
def test_metrics_that_cannot_be_read_are_no_load(snapshot: bytes) -> None:
    assert process(Lease("worker-1", "worker", 1), snapshot).load == {}


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [((1, 1, 1, 1), True), ((2, 2, 2, 2), True), ((1, 1, 2, 2), False), ((1, 1, 1, 2), False)],
)
def test_processes_of_two_protocols_make_no_deployment(protocols: tuple[int, ...], expected: bool) -> None:
    found = [serving(one, protocol=protocol) for one, protocol in zip(SERVICES, protocols, strict=True)]
    assert whole(found) is expected


def serving(service: str, protocol: int = 1, doors: tuple[str, ...] = ("calls:x",), **info: Any) -> Process:
    """A process that takes calls."""
    if service == "gateway":
        return Process(service, 1, protocol=protocol, info={"url": "http://x"})
    return Process(service, 1, protocol=protocol, doors=doors, info={"model": "fox", **info})


@pytest.mark.parametrize(
    "change", [{"doors": ()}, {"stopping": True}, {"model": "owl"}], ids=["loads", "stops", "other model"]
)
def test_a_worker_that_takes_no_calls_for_the_model_makes_no_deployment(change: dict[str, Any]) -> None:
    others = [serving(one) for one in SERVICES[:3]]
    assert not whole([*others[1:], serving("worker"), Process("gateway", 1, protocol=1)])
    worker = serving("worker", **change)
    assert not whole([*others, worker])
    assert whole([*others, worker, serving("worker")])


async def test_a_process_that_has_ended_is_shown_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the model answers, as another worker does."""

    async def nothing(*_: object) -> list[Process]:
        return []

    async def answers(_: str) -> bool:
        return True

    monkeypatch.setattr(status, "_processes", nothing)
    monkeypatch.setattr(status, "_ready", answers)
    lives, ended = Identity.of(os.getpid()), Identity(2**30, "never")
    processes = {"redis": lives, "worker-0": lives, "worker-1": ended}
    record = Deployment("http://x", 1, "fox", "redis://x", "quire:", launcher=lives, processes=processes)
    shown = await status._deployment(record)
    assert [one.note for one in shown.processes] == ["", "no lease", "ended", ""]
    assert (shown.ready, shown.state) == (False, "NOT READY")
    del record.processes["worker-1"]
    assert (await status._deployment(record)).ready


def test_without_a_deployment_programs_get_an_empty_list(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("QUIRE_REDIS_URL", raising=False)
    assert main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == []
