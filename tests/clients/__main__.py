"""Unmodified clients against a deployment of Quire: `python -m tests.clients [CLIENT ...]`.

Each client runs in an environment of its own. At the end comes a table of what passed. The exit status is 1
if a check failed or a client could not be installed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.launcher.redis_server import RedisServer
from ops.launcher.served import SHIPPED_MODEL_NAME
from tests.clients.clients import CLIENTS, Client
from tests.clients.environments import NoEnvironmentError, cache_folder, command_of, environment_of
from tests.clients.scripted import CONTEXT as SCRIPTED_CONTEXT
from tests.clients.scripted import TEMPLATE, ScriptedDeployment
from tests.clients.sight import let_see
from tests.support.deployment import SHIPPED_MODEL, Deployment

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
CONTEXT = 16384
"""Tokens. The prompts of some agents do not fit into the shipped model's own context."""
MOST_SECONDS = 600.0
"""A client that takes longer hangs."""


@dataclass(frozen=True)
class Outcome:
    """What came of one client. The keys are the names of checks."""

    client: Client
    seconds: float
    passed: tuple[str, ...]
    failed: Mapping[str, str]
    """With the reasons."""
    skipped: Mapping[str, str]
    """With the reasons."""

    def row(self) -> str:
        counts = f"{len(self.passed)} | {len(self.failed)} | {len(self.skipped)}"
        return f"| {self.client.version} | {counts} | {self.seconds:.0f} |"


def with_long_context(folder: Path, scripted: bool) -> Path:
    """A copy of the shipped model in `folder`, with a longer context. What it says there makes no sense.

    `scripted`: it says what a script has, and its template shows functions and calls. Otherwise it sees.
    """
    model = folder / SHIPPED_MODEL_NAME
    shutil.copytree(SHIPPED_MODEL, model)
    context = SCRIPTED_CONTEXT if scripted else CONTEXT
    template = {"chat_template": TEMPLATE} if scripted else {}
    for name, fields in (
        ("config", {"max_position_embeddings": context}),
        ("tokenizer_config", {"model_max_length": context} | template),
    ):
        path = model / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    if not scripted:
        let_see(model)
    return model


def tried(client: Client, url: str, model: Path, folder: Path, cache: Path) -> Outcome:
    """Run the client's script. `folder`: what it writes stays there."""
    begun = time.monotonic()
    try:
        environment = environment_of(client, cache)
    except NoEnvironmentError as why:
        missing = "not installed" in str(why)
        reason = {"install": str(why)}
        return Outcome(client, 0, (), {} if missing else reason, reason if missing else {})
    home, results = folder / client.name, folder / f"{client.name}.jsonl"
    home.mkdir()
    log = folder / f"{client.name}.log"
    with log.open("w") as out:
        try:
            status: object = subprocess.run(
                command_of(client, environment, SCRIPTS / client.script),
                cwd=home,
                env=_variables(url, model, home, results),
                stdout=out,
                stderr=out,
                timeout=MOST_SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"not ended after {MOST_SECONDS:.0f} s"
    found = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    reasons = {
        outcome: {each["check"]: each["why"] for each in found if each["outcome"] == outcome}
        for outcome in ("passed", "failed", "skipped")
    }
    if status or not found:
        reasons["failed"]["script"] = f"ended with {status}: {log.read_text()[-2000:]}"
    seconds = time.monotonic() - begun
    return Outcome(client, seconds, tuple(reasons["passed"]), reasons["failed"], reasons["skipped"])


def _variables(url: str, model: Path, home: Path, results: Path) -> dict[str, str]:
    """The environment variables of a script: nothing of this machine's user, and no way out."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_PROXY": "*",
        "HF_HUB_OFFLINE": "1",
        "CLIENT_BASE_URL": f"{url}/v1",
        "CLIENT_MODEL": model.name,
        "CLIENT_MODEL_FOLDER": str(model),
        "QUIRE_PYTHON": sys.executable,
        "QUIRE_ROOT": str(ROOT),
        "CLIENT_RESULTS": str(results),
    }


def table(outcomes: list[Outcome]) -> str:
    lines = ["| client | passed | failed | skipped | seconds |", "|---|---:|---:|---:|---:|"]
    lines += [outcome.row() for outcome in outcomes]
    for word in ("failed", "skipped"):
        for outcome in outcomes:
            reasons = getattr(outcome, word)
            lines += [f"{word}: {outcome.client.name}, {name}: {why}" for name, why in reasons.items()]
    return "\n".join(lines)


def try_all(
    clients: Sequence[Client], scripted: bool, options: argparse.Namespace, outcomes: list[Outcome]
) -> list[str]:
    """Try the clients at one deployment, and add what came of each. Returns what was logged as an error."""
    with tempfile.TemporaryDirectory(prefix="quire-clients-") as name, RedisServer() as server:
        folder, logs = Path(name), Path(name) / "deployment"
        logs.mkdir()
        model = with_long_context(folder, scripted)
        kind = ScriptedDeployment if scripted else Deployment
        deployment = kind(server, logs, model, QUIRE_LEASE_SECONDS="60", QUIRE_KV_MEMORY="256MiB")
        try:
            deployment.start()
            for client in clients:
                outcome = tried(client, deployment.url, model, folder, options.cache)
                outcomes.append(outcome)
                print(
                    f"{client.version}: {len(outcome.passed)} passed, {len(outcome.failed)} failed",
                    flush=True,
                )
                if options.logs and (log := folder / f"{client.name}.log").exists():
                    print(log.read_text())
        finally:
            deployment.stop()
        return deployment.errors()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [client.name for client in CLIENTS]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of the environments")
    parser.add_argument("--logs", action="store_true", help="print what each client prints")
    options = parser.parse_args()
    if unknown := sorted(set(options.clients) - set(names)):
        parser.error(f"unknown: {', '.join(unknown)}")
    chosen = [client for client in CLIENTS if not options.clients or client.name in options.clients]
    outcomes, errors = list[Outcome](), list[str]()
    for scripted in (False, True):
        if asked := [client for client in chosen if client.scripted is scripted]:
            errors += try_all(asked, scripted, options, outcomes)
    print("\n".join(["", table(outcomes), *(f"logged: {line}" for line in errors)]))
    sys.exit(1 if errors or any(outcome.failed for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
