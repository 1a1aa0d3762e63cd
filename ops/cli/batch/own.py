"""A deployment for as long as a batch takes."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

from ops.launcher.redis_server import free_port
from ops.launcher.specs import own_code
from ops.runtime.errors import LaunchError
from ops.runtime.lifeline import tied_to_parent

STOP_SECONDS = 60


@contextlib.contextmanager
def deployment(model: str | None) -> Iterator[str]:
    """`quire up` with a model (None: its default) until the block ends. Gives the URL.

    What it prints goes to standard error. Raises `LaunchError` if it does not come up.
    """
    port = free_port()
    command = [sys.executable, "-m", "ops.cli.main", "up", "--port", str(port)]
    launcher = subprocess.Popen(
        [*command, *(["--model", model] if model else [])],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **own_code()},
        preexec_fn=tied_to_parent(),
    )
    try:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            print(line, end="", file=sys.stderr)
            if line.startswith("ready"):
                break
        else:
            raise LaunchError("no deployment runs, and none of its own came up")
        threading.Thread(target=launcher.stdout.read, daemon=True).start()  # a full pipe would stop it
        yield f"http://127.0.0.1:{port}"
    finally:
        launcher.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.communicate(timeout=STOP_SECONDS)
        launcher.kill()
