"""`quire up` over stand-ins: small packages with our services' names, found before the real ones."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ops.launcher.redis_server import free_port

ROOT = Path(__file__).parents[2]

# Writes its name and pid to the journal, holds a lease as a service would, and waits for its end. Many of
# them are started: to import a client of Redis would take each as long as all the rest.
_SERVICE = """
import json, os, signal, socket, sys, time
from urllib.parse import unquote, urlsplit
name = {name!r}
def journal(word):
    with open(os.environ["JOURNAL"], "a") as file:
        print(word, name, os.getpid(), file=file)
def ended(*_):
    journal("end")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STUBBORN") == name else ended)
signal.signal(signal.SIGINT, lambda *_: journal("interrupted"))
journal("start")
if os.environ.get("BROKEN") == name:
    print("quire: the", name, "is broken", file=sys.stderr)
    sys.exit(int(os.environ["STATUS"]))
def ask(*words):
    where = urlsplit(os.environ["QUIRE_REDIS_URL"])
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(unquote(where.path))
        replies = link.makefile("rb")
        for command in (("AUTH", where.username, where.password), words):
            packed = [b"$%d\\r\\n%s\\r\\n" % (len(word), word) for word in map(str.encode, command)]
            link.sendall(b"*%d\\r\\n" % len(packed) + b"".join(packed))
            first = replies.readline()
            assert first[:1] in b"+:*", first
        members = int(first[1:]) if first[:1] == b"*" else 0
        return [replies.read(int(replies.readline()[1:]) + 2)[:-2] for _ in range(members)]
lease = dict(service=name, epoch=1, host=socket.gethostname(), pid=os.getpid(),
             info=dict(model=os.environ.get("QUIRE_MODEL_NAME"), device="cpu", dtype="float32"))
ask("SET", f"quire:alive:{{name}}-{{os.getpid()}}", json.dumps(lease), "EX", "600")
ask("SADD", "quire:processes", f"{{name}}-{{os.getpid()}}")
"""

_GATEWAY = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keys = [f"quire:alive:{one.decode()}" for one in ask("SMEMBERS", "quire:processes")]
        leases = [json.loads(one) for one in ask("MGET", *keys)]
        names = [one["info"]["model"] for one in leases if one["info"].get("model")]
        models = [name for name in sorted(set(names)) if names.count(name) >= 3]
        self.send_response(200 if models else 503)
        self.end_headers()
        self.wfile.write(json.dumps(dict(models=models)).encode())
    do_GET = do_POST = answer
HTTPServer.allow_reuse_address = True
HTTPServer((os.environ["QUIRE_HOST"], int(os.environ["QUIRE_PORT"])), Handler).serve_forever()
"""

SERVICES = {
    "gpu_worker": "worker",
    "scheduler_svc": "scheduler",
    "tokenizer_svc": "tokenizer",
    "gateway": "gateway",
}


@dataclass
class Stage:
    """A place to run `quire` in, with a state directory, a port and stand-ins of its own."""

    directory: Path
    port: int = field(default_factory=free_port)
    environment: dict[str, str] = field(default_factory=dict)
    launchers: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "ops.cli.main", *arguments]

    @property
    def settings(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("QUIRE_")}
        ours = {
            "PYTHONPATH": f"{self.directory / 'packages'}{os.pathsep}{ROOT}",
            "XDG_STATE_HOME": str(self.directory / "state"),
            "JOURNAL": str(self.directory / "journal"),
            "QUIRE_STOP_SECONDS": "60",  # however slow the machine is, who listens is not killed
        }
        return inherited | ours | self.environment

    def quire(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.settings,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=200,
        )

    def up(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `quire up` and return once it is ready."""
        launcher = subprocess.Popen(
            self.command("up", "--port", str(self.port), "--model", str(self.model), *arguments),
            env=self.settings,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.launchers.append(launcher)
        assert launcher.stdout is not None
        seen = []
        for line in launcher.stdout:
            seen.append(line)
            if "stops it" in line:
                return launcher
        raise AssertionError(f"quire up ended with {launcher.wait()}: {''.join(seen)}")

    @property
    def model(self) -> Path:
        return self.directory / "fox"

    def journal(self, word: str) -> list[tuple[str, int]]:
        """(name, pid) of all who have written this word, in order."""
        path = self.directory / "journal"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(name, int(pid)) for what, name, pid in lines if what == word]

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"it did not come; journal: {self.journal('start')}"
            time.sleep(0.02)

    def alive(self) -> list[int]:
        """Processes of this stage: those that work in its directory, as they all do."""
        mine = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(self.directory):
                    mine.append(process.pid)
        return mine

    def build(self) -> None:
        """Lay out the stand-ins and a directory that passes for a model."""
        for package, name in SERVICES.items():
            folder = self.directory / "packages" / package
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
            # signal.pause() would not see a signal that comes just before it begins to wait.
            body = _GATEWAY if name == "gateway" else "while True: time.sleep(0.2)\n"
            (folder / "__main__.py").write_text(_SERVICE.format(name=name) + body)
        self.model.mkdir()
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (self.model / name).write_text("{}")

    def clear(self) -> None:
        """End whatever a test has left."""
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
            assert launcher.stdout is not None
            launcher.stdout.close()
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
