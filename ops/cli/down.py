"""`quire down`: stop what `quire up` has started."""

import argparse
import signal
from typing import Any

from ops.launcher.record import Deployment, forget, recorded

_PATIENCE = 30.0
"""Seconds that a launcher has for ending its processes; it needs a few at most."""


def add_to(subcommands: Any) -> None:
    down = subcommands.add_parser(
        "down",
        help="stop what `quire up` started",
        description="Stop the deployments that `quire up` has started on this machine, by this user.",
    )
    down.add_argument("--port", type=int, metavar="P", help="only the one on this port")
    down.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    deployments = [found for found in recorded() if arguments.port in (None, found.port)]
    for deployment in deployments:
        stop(deployment)
        print(f"stopped {deployment.model} on {deployment.url}")
    if not deployments:
        print("nothing to stop")
    return 0


def stop(deployment: Deployment) -> None:
    """End a deployment: its launcher by asking, and what is left of it by force.

    Only processes that are the recorded ones are touched, never others that got their numbers.
    """
    if not deployment.launcher.end(signal.SIGTERM, _PATIENCE):
        deployment.launcher.end(signal.SIGKILL, _PATIENCE)
    for process in deployment.processes.values():
        process.end(signal.SIGKILL, _PATIENCE)
    forget(deployment.port)
