"""`quire replay`: a recording carried out again, step by step."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from ops.cli.arguments import add_command

_DESCRIPTION = """\
Carry out again what `quire record`, or a step that failed, has left behind, and stop at the first
difference. The scheduler's core is told what it was told and must make the same plans. With --worker a
worker is then given these plans and must give the same tokens. QUIRE_MODEL, QUIRE_DEVICE, QUIRE_DTYPE
and the worker's other settings hold; they must be those of the worker that was recorded.

Exit status: 0 if all is the same, 1 at a difference, 2 if the file cannot be read.
"""


def add_to(subcommands: Any) -> None:
    command = add_command(
        subcommands, "replay", "carry out a recording again, to the first difference", _DESCRIPTION
    )
    command.add_argument("file", type=Path, metavar="FILE", help="a recording")
    command.add_argument("--worker", action="store_true", help="against a worker, too")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        from ops.replay.file import read
        from ops.replay.plans import Replayed
    except ModuleNotFoundError as error:
        return _lacks(error, "scheduler")
    recording = read(options.file)
    ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(recording.ended))
    print(f"{len(recording.events)} events up to {ended}, of Quire {recording.version or 'without version'}")
    print(f"written because {recording.reason}")
    found = Replayed(recording).run()
    status = _tell("the core", "planned", found)
    return max(status, _against_worker(recording)) if options.worker else status


def _against_worker(recording: Any) -> int:
    try:
        from gpu_worker.errors import WorkerError
        from gpu_worker.settings import WorkerSettings
        from ops.replay.tokens import Compared, runner_like
    except ModuleNotFoundError as error:
        return _lacks(error, "worker")
    try:
        runner = runner_like(recording.worker, WorkerSettings.read())
    except WorkerError as error:
        print(f"quire replay: {error}", file=sys.stderr)
        return 2
    adapters = {each.name: each.fingerprint for each in recording.worker.adapters}
    if runner.fingerprint != recording.worker.fingerprint:
        print("this worker has other weights, number formats or kernels than the one that was recorded")
    elif runner.adapters != adapters:
        print("this worker has other LoRA adapters than the one that was recorded (QUIRE_LORA_MODULES)")
    compared = Compared(recording, runner)
    try:
        found = compared.run()
    finally:
        runner.close()
    if compared.rows_left_out:
        print(f"{compared.rows_left_out} rows are left out, of sequences that began before the recording")
    return _tell(f"the worker ({compared.rows} rows)", "computed", found)


def _lacks(error: ModuleNotFoundError, service: str) -> int:
    needs = f"it needs what a {service} needs"
    print(f"quire replay: {error.name} is not installed: {needs}", file=sys.stderr)
    return 2


def _tell(who: str, did: str, found: Any) -> int:
    print(f"{who}: {found.steps} steps were {did} as before")
    for line in found.lines:
        print(f"  {line}")
    return 1 if found.lines else 0
