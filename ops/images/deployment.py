"""The deployment of docker-compose.yml that `checks.py` tries: its containers, and what it answers.

Of Python it needs the standard library alone.
"""

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

URL = f"http://127.0.0.1:{os.environ.get('QUIRE_PORT', '8000')}"
JAEGER = f"http://127.0.0.1:{os.environ.get('JAEGER_PORT', '16686')}"
PROMETHEUS = f"http://127.0.0.1:{os.environ.get('PROMETHEUS_PORT', '9090')}"
MODEL = os.environ.get("QUIRE_MODEL_NAME", "quire-tiny")
CHAIN = ("gateway", "tokenizer", "scheduler", "worker")
SERVICES = ("redis", *CHAIN)
PATIENCE = 180.0
"""Seconds for what should come by itself, such as a container that starts again. Machines may be slow."""
ANSWER = {
    "model": MODEL,
    "prompt": "Once upon a time",
    "max_tokens": 1500,
    "n": 2,
    "temperature": 0.9,
    "seed": 7,
    "ignore_eos": True,
}
"""A request whose answer is always the same, and long enough for something to happen in between."""

_key = ""
"""The API key of every request, once there is one."""


class Broken(Exception):
    """A promise is not kept; the message says which."""


def docker(*arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=600)
    if check and done.returncode:
        raise Broken(f"docker {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def inside(service: str, program: str, check: bool = True, python: bool = True) -> str:
    """Run a program of Python's (or of the shell's) in the service's container; what it prints."""
    command = ("python", "-c", program) if python else ("sh", "-c", program)
    done = docker("compose", "exec", "-T", service, *command, check=check)
    return done.stdout.strip() or done.stderr.strip()


def containers(service: str) -> list[str]:
    return docker("compose", "ps", "-q", service).stdout.split()


def inspected(service: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("inspect", containers(service)[0]).stdout)[0]
    return found


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise Broken(what)


def wait_until(what: str, true: Callable[[], bool]) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    while not true():
        promise(time.monotonic() - began < PATIENCE, f"waited {PATIENCE:.0f} s until {what}")
        time.sleep(0.2)
    return time.monotonic() - began


def use_key(key: str) -> None:
    """Send this API key with every request from now on."""
    global _key
    _key = key


def request(path: str, body: dict[str, Any] | None = None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {_key}"} if _key else {})
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(f"{URL}{path}", data, headers), timeout=PATIENCE)


def status_of(path: str, body: dict[str, Any] | None = None) -> int:
    """Its HTTP status; 0 if nobody answers."""
    try:
        with request(path, body) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, HTTPException):
        return 0


def asked(server: str, what: str, **parameters: str) -> Any:
    """What the API of Prometheus or Jaeger says; it has to answer."""
    with urllib.request.urlopen(f"{server}/api/{what}?{urlencode(parameters)}", timeout=PATIENCE) as answer:
        return json.load(answer)


def wait_ready() -> float:
    return wait_until("/health/ready answers 200", lambda: status_of("/health/ready") == 200)


Texts = dict[int, str]
"""The text of each choice."""


def whole() -> Texts:
    """The answer in one piece."""
    with request("/v1/completions", ANSWER) as answer:
        return {choice["index"]: choice["text"] for choice in json.load(answer)["choices"]}


class Stream:
    """The answer as a stream that a thread reads."""

    def __init__(self) -> None:
        self.texts: Texts = {}
        self.gap = 0.0
        """Longest time without an event. Seconds."""
        self.problem = "it broke off"
        """Why the answer is not whole; empty if it is."""
        self._events = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with closing(request("/v1/completions", {**ANSWER, "stream": True})) as answer:
                for event in self._events_of(answer):
                    if event == "[DONE]":
                        self.problem = ""
                        return
                    found = json.loads(event)
                    if "choices" not in found:
                        self.problem = event
                        return
                    for choice in found["choices"]:
                        index = choice["index"]
                        self.texts[index] = self.texts.get(index, "") + choice["text"]
        except (OSError, HTTPException) as error:
            self.problem = f"{error!r}"

    def _events_of(self, answer: Any) -> Iterator[str]:
        before = time.monotonic()
        for line in answer:
            if line.startswith(b"data: "):
                now = time.monotonic()
                self.gap, before = max(self.gap, now - before), now
                self._events += 1
                yield line[len(b"data: ") :].decode().strip()

    def begun(self) -> "Stream":
        """Return when some of the answer is there, and some is not."""
        wait_until("a stream begins", lambda: self._events > 50 or not self._thread.is_alive())
        promise(self._thread.is_alive(), f"a stream ended before anything could happen: {self.problem}")
        return self

    def under_way(self) -> bool:
        return self._thread.is_alive()

    def ends(self) -> "Stream":
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self.problem = f"it did not end within {PATIENCE:.0f} s"
        return self

    def ends_whole(self, meanwhile: str) -> None:
        self.ends()
        promise(not self.problem, f"{meanwhile}: a stream was not whole: {self.problem}")
        promise(self.texts == REFERENCE, f"{meanwhile}: a stream had another text")
        print(f"   {meanwhile}: the same text, longest gap {self.gap:.1f} s", flush=True)


REFERENCE: Texts = {}
"""The texts of the answer when nothing happens."""


# The engine takes a container that it kills itself for one that a person has stopped.
KILL = "kill -{signal} $(cat /proc/1/task/1/children)"


def kill(service: str, signal: str = "KILL") -> None:
    inside(service, KILL.format(signal=signal), check=False, python=False)


def wait_for_restart(service: str, restarts: int) -> float:
    """The seconds until a container has been started more often than that."""
    return wait_until(
        f"{service} is started again", lambda: int(inspected(service)["RestartCount"]) > restarts
    )
