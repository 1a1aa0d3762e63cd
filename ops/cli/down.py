"""`quire down`: stop what `quire up` has started."""

import argparse
import signal
import sys
from typing import Any

from ops.launcher.deployments import Deployment, forget_ended, recorded
from ops.runtime.errors import UsageError

_PATIENCE = 15.0
"""Seconds that a launcher has for ending its processes, beside what their calls get in each stage."""


def add_to(subcommands: Any) -> None:
    down = subcommands.add_parser(
        "down",
        help="stop what `quire up` started",
        description="Stop the deployment that `quire up` has started on this machine, by this user.",
    )
    which = down.add_mutually_exclusive_group()
    which.add_argument("--port", type=int, metavar="P", help="the one on this port")
    which.add_argument("--all", action="store_true", help="all of them, if there are several")
    down.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    deployments = [found for found in recorded() if arguments.port in (None, found.port)]
    if len(deployments) > 1 and not arguments.all:
        ports = ", ".join(str(found.port) for found in deployments)
        raise UsageError(f"there are deployments on ports {ports}: say --port P or --all")
    status = 0
    for deployment in deployments:
        name = f"{deployment.model} on {deployment.url}"
        if stop(deployment):
            print(f"stopped {name}")
        else:
            where = "perhaps in another container or on another machine"
            print(f"{name} goes on, {where}: stop it there", file=sys.stderr)
            status = 1
    if not deployments:
        print("nothing to stop")
    return status


def stop(deployment: Deployment) -> bool:
    """End a deployment: its launcher by asking, and what is left of it by force. False if its launcher lives
    all the same, where this process does not see it.

    Only processes that are the recorded ones are touched, never others that got their numbers.
    """
    if not deployment.launcher.end(signal.SIGTERM, _PATIENCE + 3 * deployment.stop_seconds):
        deployment.launcher.end(signal.SIGKILL, _PATIENCE)
    for process in deployment.processes.values():
        process.end(signal.SIGKILL, _PATIENCE)
    return forget_ended(deployment.port)
