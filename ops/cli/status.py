"""`quire status`: what runs, and how it is."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from ops.cli.arguments import add_command
from ops.cli.load import Load, in_words, load_of
from ops.launcher.deployments import Deployment, recorded
from ops.launcher.leases import Leases
from ops.runtime.metric_names import BY_NAME
from ops.runtime.metrics import parse
from ops.runtime.metrics_store import MetricsStore
from ops.runtime.settings import named_redis, stream_prefix
from proto.redis_url import without_password
from proto.rpc import BusAway, Lease
from proto.rpc.line import Line

_DESCRIPTION = """\
Show the deployments that `quire up` has started on this machine: every process with its id, its
load, and what it says of itself. With QUIRE_REDIS_URL set and none of those running, the processes
that share that Redis, wherever they run. `quire top` shows the load as it changes.

Exit status: 0 if all of them are ready, else 1.
"""


@dataclass
class Process:
    """A process of a deployment. Without a lease it has neither id nor info."""

    service: str
    pid: int
    id: str = ""
    epoch: int = 0
    protocol: int = 0
    doors: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    load: Load = field(default_factory=dict)
    note: str = ""

    @property
    def answers(self) -> bool:
        """Whether it takes calls, as it does neither while it loads a model nor while it stops."""
        return bool(self.doors or self.info.get("url")) and not self.info.get("stopping")


@dataclass
class Shown:
    """A deployment: where it is, what it serves, and whether it is ready."""

    where: str
    model: str
    ready: bool
    state: str
    processes: list[Process] = field(default_factory=list)


def add_to(subcommands: Any) -> None:
    status = add_command(subcommands, "status", "show what runs", _DESCRIPTION)
    status.add_argument("--json", action="store_true", help="for programs: a list of deployments")
    status.set_defaults(run=lambda arguments: asyncio.run(run(arguments.json)))


async def run(as_json: bool) -> int:
    shown = [await _deployment(each) for each in recorded()]
    if not shown and (url := named_redis()) is not None:
        shown = [await _shared(url)]
    if as_json:
        print(json.dumps([asdict(each) for each in shown], indent=2))
    elif not shown:
        print("nothing runs; start it with `quire up`")
    else:
        for each in shown:
            _print(each)
    return 0 if shown and all(each.ready for each in shown) else 1


async def _deployment(deployment: Deployment) -> Shown:
    """A deployment of this machine."""
    if not deployment.launcher.alive():
        return Shown(deployment.url, deployment.model, False, "not running (`quire down` cleans up)")
    ready = await _ready(deployment.url)
    processes = await _processes(deployment.redis_url, deployment.stream_prefix)
    with_lease = {process.pid for process in processes}
    for name, process in deployment.processes.items():
        if process.pid not in with_lease:
            note = "ended" if not process.alive() else "no lease" if name != "redis" else ""
            processes.append(Process(name, process.pid, note=note))
    ready = ready and not any(process.note == "ended" for process in processes)
    processes.append(Process("launcher", deployment.launcher.pid))
    return Shown(deployment.url, deployment.model, ready, "ready" if ready else "NOT READY", processes)


async def _shared(url: str) -> Shown:
    """The processes with a lease in the environment's Redis."""
    processes = await _processes(url, stream_prefix())
    ready = whole(processes)
    return Shown(without_password(url), "", ready, "" if ready else "NOT READY", processes)


def whole(processes: Sequence[Process]) -> bool:
    """Whether a process of each service takes calls for one model, and all of them speak one protocol."""
    found = {(one.protocol, one.info.get("model"), one.service) for one in processes if one.answers}
    return any(
        {(protocol, model, each) for each in ("tokenizer", "scheduler", "worker")} <= found
        for protocol, _, service in found
        if service == "gateway"
        for _, model, _ in found
    )


async def _processes(url: str, prefix: str) -> list[Process]:
    """The processes with a lease, and their load. A Redis that is away is named on standard error."""
    leases, store = Leases(url, prefix), MetricsStore(Line(url), prefix)
    try:
        holders = await leases.holders()
        snapshots = await store.read([holder.process_id for holder in holders])
    except BusAway as error:
        print(f"quire status: {error}", file=sys.stderr)
        return []
    finally:
        await leases.aclose()
        store.close()
    return [process(holder, snapshots.get(holder.process_id)) for holder in holders]


def process(holder: Lease, snapshot: bytes | None) -> Process:
    """What the lease and the metrics of a process say."""
    try:
        load = load_of(holder.service, parse(snapshot, BY_NAME)) if snapshot is not None else {}
    except ValueError:  # of another version
        load = {}
    info = {name: value for name, value in holder.info.items() if value not in ("", [])}
    return Process(
        holder.service,
        holder.pid,
        holder.process_id,
        holder.epoch,
        holder.protocol,
        holder.doors,
        info,
        load,
    )


async def _ready(url: str) -> bool:
    try:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            return (await client.get(f"{url}/health/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _print(shown: Shown) -> None:
    print("  ".join(part for part in (shown.where, shown.model, shown.state) if part))
    if shown.processes:
        _print_table([row(process) for process in shown.processes])


def row(process: Process) -> tuple[str, ...]:
    """A process as a row of the table."""
    info = dict(process.info)
    model = str(info.pop("model", ""))
    facts = [f"{name}={_readable(value)}" for name, value in info.items()]
    load = process.note or in_words(process.load)
    protocol = str(process.protocol or "")
    return process.service, process.id or "-", str(process.pid), protocol, model, load, " ".join(facts)


def _readable(value: Any) -> str:
    """A value of a lease: one that has parts is not shown as Python's own text."""
    if isinstance(value, dict):
        return ",".join(f"{name}:{_readable(each)}" for name, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns as wide as they need."""
    table = [("SERVICE", "ID", "PID", "PROTOCOL", "MODEL", "LOAD", "INFO"), *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        print(f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip())
