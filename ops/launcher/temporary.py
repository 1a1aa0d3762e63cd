"""A deployment for as long as a command or a benchmark needs one."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from ops.launcher.deployments import Deployment, recorded
from ops.launcher.redis_server import free_port
from ops.runtime.errors import LaunchError
from ops.runtime.lifeline import tied_to_parent

STOP_SECONDS = 60


@contextlib.contextmanager
def temporary_deployment(
    arguments: Sequence[str], environment: Mapping[str, str], say: Callable[[str], None] = lambda _: None
) -> Iterator[Deployment]:
    """`quire up` with these arguments and additions to the environment, until the block ends.

    `say`: gets each line that it prints until it is ready. Raises `LaunchError` if it does not come up.
    """
    port = free_port()
    launcher = subprocess.Popen(
        [sys.executable, "-m", "ops.cli.main", "up", "--port", str(port), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=tied_to_parent(),  # also when this process is killed
    )
    try:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            say(line.rstrip("\n"))
            if line.startswith("ready"):
                break
        else:
            raise LaunchError("`quire up` ended before it was ready")
        threading.Thread(target=launcher.stdout.read, daemon=True).start()  # a full pipe would stop it
        yield next(one for one in recorded() if one.port == port)
    finally:
        launcher.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.communicate(timeout=STOP_SECONDS)
        launcher.kill()
