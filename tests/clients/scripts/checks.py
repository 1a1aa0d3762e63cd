"""What the scripts of all clients share: the server to ask, and checks that are made one after the other.

A script runs in its client's environment, with this folder on its path and nothing else of the repository.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

BASE_URL = os.environ["CLIENT_BASE_URL"]
"""Ends with /v1."""
MODEL = os.environ["CLIENT_MODEL"]
KEY = "none"
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAIAQMAAADKuO3UAAAABlBMVEX/eAAoeChsDPVRAAAAEklEQVR4"
    "2mPkZ2BigCLGDwg2AAx1AQ5N1sOhAAAAAElFTkSuQmCC"
)
"""A PNG file in base64: a chequered field of 16 by 8 pixels."""
IMAGE_URL = f"data:image/png;base64,{IMAGE}"
IMAGE_TOKENS = 10
"""What it adds to a prompt: two rows of four, each with a token at its end."""

Check = Callable[[], Any]
_checks: list[Check] = []


class SkippedError(Exception):
    """This check cannot be made here; the message says why."""


def check(function: Check) -> Check:
    """Mark a function as a check: it passes if it returns, and may be a coroutine function."""
    _checks.append(function)
    return function


def refusal(kind: type[Exception], ask: Callable[[], object]) -> Any:
    """The error of this kind that `ask` raises. Raises `AssertionError` if it raises none."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def run() -> None:
    """Make all checks, and write what came of each to the file that the environment names."""
    with open(os.environ["CLIENT_RESULTS"], "a") as results:
        for function in _checks:
            name = function.__name__.replace("_", " ")
            print(f"== {name}", flush=True)
            outcome = {"check": name, **_outcome(function)}
            print(f"   {outcome['outcome']}", flush=True)
            results.write(json.dumps(outcome) + "\n")
            results.flush()


def _outcome(function: Check) -> dict[str, str]:
    try:
        made = function()
        if inspect.iscoroutine(made):
            asyncio.run(made)
    except SkippedError as why:
        return {"outcome": "skipped", "why": str(why)}
    except BaseException as error:
        traceback.print_exc(file=sys.stdout)
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:400]}
    return {"outcome": "passed", "why": ""}
