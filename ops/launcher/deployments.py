"""Records on disk of the deployments that run, so that `quire status` and `quire down` find them.

<state>/<port>/deployment.json    while a deployment runs on that port
               logs/<name>.log    of the latest one; <name>.log.1 and so on are older
               redis/             data of its embedded Redis
               keys.json          digests of its API keys; see `kept_keys.py`
               lock               held by its launcher
"""

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from ops.launcher.redis_server import clear_left
from ops.runtime.errors import LaunchError
from ops.runtime.identity import Identity
from ops.runtime.rotation import rotate
from ops.runtime.user_directory import user_directory


@dataclass(frozen=True)
class Deployment:
    """A deployment that was started on this machine."""

    url: str
    port: int
    model: str
    """Names of its models, with commas between them."""
    redis_url: str
    stream_prefix: str
    launcher: Identity
    processes: dict[str, Identity]
    """The deployment's processes by name, without the launcher."""
    stop_seconds: float = 5.0
    """Time that answers under way get to end when the deployment is stopped."""

    @property
    def pids(self) -> dict[str, int]:
        """Ids of `processes`."""
        return {name: process.pid for name, process in self.processes.items()}


def state_directory() -> Path:
    """`$XDG_STATE_HOME/quire`, by default `~/.local/state/quire`."""
    return user_directory("XDG_STATE_HOME", ".local/state")


def logs_directory(port: int) -> Path:
    """Where the processes of the deployment on a port log to."""
    return state_directory() / str(port) / "logs"


def recorded() -> list[Deployment]:
    """The deployments on record, by port; their processes may have ended meanwhile."""
    found = [_read(path) for path in state_directory().glob("*/deployment.json")]
    return sorted((deployment for deployment in found if deployment), key=lambda found: found.port)


def forget(port: int) -> None:
    """Take the deployment on a port off the record, with what a launcher that was killed left elsewhere."""
    clear_left(state_directory() / str(port) / "redis")
    _record_path(port).unlink(missing_ok=True)


def forget_ended(port: int) -> bool:
    """As `forget`, unless a launcher holds the port's directory: one that seemed to have ended may live,
    where its number is another. Whether none did."""
    try:
        with _lock(state_directory() / str(port)):
            forget(port)
    except BlockingIOError:
        return False
    return True


def write(deployment: Deployment) -> None:
    """Put a deployment on record, in one step: a reader sees the old record or the new one."""
    path = _record_path(deployment.port)
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)  # the URL of a Redis may hold its password
    draft.write_text(json.dumps(asdict(deployment), indent=2))
    draft.replace(path)


@contextlib.contextmanager
def claimed_directory(port: int) -> Iterator[Path]:
    """This port's directory for one launcher alone. Logs of earlier deployments become old ones.

    Raises `LaunchError` if another launcher holds it, or the file system does not let it be kept.
    """
    directory = state_directory() / str(port)
    with contextlib.ExitStack() as held:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            held.enter_context(_lock(directory))
            forget(port)
            shutil.rmtree(directory / "redis", ignore_errors=True)
            for name in ("logs", "redis"):
                (directory / name).mkdir(exist_ok=True)
            for log in (directory / "logs").glob("*.log"):
                rotate(log)
        except BlockingIOError:
            raise LaunchError(
                f"a deployment on port {port} runs already; `quire down` stops it, --port starts another"
            ) from None
        except OSError as error:
            reason = error.strerror or error
            raise LaunchError(
                f"cannot keep state in {directory}: {reason}; XDG_STATE_HOME names another place"
            ) from None
        yield directory


def _lock(directory: Path) -> TextIO:
    """The directory's lock, held until it is closed. Raises `BlockingIOError` if somebody else holds it."""
    with contextlib.ExitStack() as opened:
        lock = opened.enter_context((directory / "lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened.pop_all()
    return lock


def _record_path(port: int) -> Path:
    return state_directory() / str(port) / "deployment.json"


def _read(path: Path) -> Deployment | None:
    """The record, or None if it is gone or was written by another version."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        fields["launcher"] = Identity(**fields["launcher"])
        fields["processes"] = {name: Identity(**value) for name, value in fields["processes"].items()}
        return Deployment(**fields)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
