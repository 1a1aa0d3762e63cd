"""An environment for each client, outside the repository: kept until its requirements change."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.clients import Client

LOCKS = Path(__file__).parent / "locks"


class NoEnvironmentError(Exception):
    """The client cannot be installed here; the message says why."""


def environment_of(client: Client, cache: Path) -> Path:
    """The folder of the client's environment, made if it is not there. Raises `NoEnvironmentError`."""
    folder = cache / f"{client.name}-{_digest(client)}"
    made = folder / "made"
    if not made.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _node(client, folder) if client.node else _python(client, folder)
        made.touch()
    return folder


def command_of(client: Client, folder: Path, script: Path) -> list[str]:
    """What runs `script` in the environment."""
    if not client.node:
        return [str(folder / "bin" / "python"), str(script)]
    # Node looks for packages beside a script, and not where it is called from.
    for needed in (script, script.with_name("checks.mjs")):
        shutil.copy(needed, folder)
    return ["node", str(folder / script.name)]


def cache_folder() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire" / "clients"


def _lock(client: Client) -> Path:
    return LOCKS / f"{client.name}.txt"


def _digest(client: Client) -> str:
    """Of everything that decides what is in the environment."""
    pinned = "" if client.node or not client.requirements else _lock(client).read_text()
    runtime = "node" if client.node else sys.version
    return hashlib.sha256(repr((client, pinned, runtime)).encode()).hexdigest()[:12]


def _python(client: Client, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    if not client.requirements:
        return
    _run([str(folder / "bin" / "pip"), *install, "--constraint", str(_lock(client)), *client.requirements])


def _node(client: Client, folder: Path) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        raise NoEnvironmentError("node and npm are not installed")
    # Without this file npm would look for a project in the folders above.
    (folder / "package.json").write_text("{}")
    _run(
        [
            "npm",
            "install",
            "--silent",
            "--no-fund",
            "--no-audit",
            "--prefix",
            str(folder),
            *client.requirements,
        ]
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines()
        raise NoEnvironmentError(f"{' '.join(command[:3])}: {lines[-1] if lines else done.returncode}")
