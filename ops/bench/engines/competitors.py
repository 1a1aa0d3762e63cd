"""Engines that answer the same questions on the same machine: Quire, transformers, any HTTP server.

Each is a context manager that yields what it started. While one is measured the others rest: what was
started here is stopped (SIGSTOP) when it is not its turn, except Quire, whose leases would run out; it waits
in blocking reads.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from gpu_worker.startup.sizing import STEP_TOKENS
from ops.bench.engines.competitor import Competitor, Measured, Server, Terms, server
from ops.bench.engines.packages import loaded
from ops.bench.engines.resting import Resting
from ops.bench.load.client import Answer, CompletionClient
from ops.bench.load.processes import cpu_seconds, running
from ops.bench.load.workload import Question
from ops.bench.rig.accounting import Books, continuous_batch
from ops.bench.serve import model_of
from ops.launcher.deployments import Deployment
from ops.launcher.redis_server import free_port
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.plan_depth import LEAST
from scheduler_svc.settings import SchedulerSettings

BLOCK_SIZE = 16
MAX_SLOTS = 64
START_SECONDS = 180
"""Time in which a server of another project must offer its model."""


@dataclass(frozen=True)
class Quire:
    """The whole chain, over HTTP."""

    name: str
    deployment: Deployment
    terms: Terms

    def ask(self, questions: Sequence[Question], users: int) -> Measured:
        client = CompletionClient(self.deployment.url, self.deployment.model)
        measured = Server(self.name, client).ask(questions, users)
        settings = SchedulerSettings()
        step_tokens = settings.step_tokens or STEP_TOKENS[self.terms.device]
        limits = WorkerLimits(
            num_blocks=self.terms.kv_tokens // BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            max_slots=max(MAX_SLOTS, self.terms.users),
            max_model_len=self.terms.longest,
            max_step_tokens=step_tokens,
            vocab_size=2**31 - 1,
        )
        books = continuous_batch(questions, users, limits, step_tokens, settings.plan_depth or LEAST)
        return Measured(measured.answers, measured.seconds, books)

    def cpu_seconds(self) -> dict[str, float]:
        return cpu_seconds(self.deployment.pids)


@contextmanager
def quire(terms: Terms) -> Iterator[Quire]:
    settings = {
        "QUIRE_DTYPE": terms.dtype,
        "QUIRE_QUANTIZATION": terms.quantization,
        "QUIRE_THREADS": str(terms.threads),
        "QUIRE_KV_MEMORY": str(terms.kv_tokens * terms.kv_bytes),
        "QUIRE_BLOCK_SIZE": str(BLOCK_SIZE),
        "QUIRE_MAX_MODEL_LEN": str(terms.longest),
        "QUIRE_MAX_SLOTS": str(max(MAX_SLOTS, terms.users)),
    }
    with running("--model", str(terms.model), **settings) as deployment:
        yield Quire("quire", deployment, terms)


@dataclass(frozen=True)
class Started:
    """A server of another project, started for the comparison."""

    name: str
    process: Resting
    server: Server
    packages: Mapping[str, str]
    """Versions of the packages that it runs, as far as they are known."""

    def ask(self, questions: Sequence[Question], users: int) -> Measured:
        with self.process.awake():
            return self.server.ask(questions, users)

    def cpu_seconds(self) -> dict[str, float]:
        return self.process.cpu_seconds()


def peer_environment(threads: int) -> dict[str, str]:
    """Of a process of another engine.

    Quire's worker asks OpenMP for threads that wait asleep, since they share cores with other processes; this
    process may have done so, too. Engines that have a machine to themselves are much slower then.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return inherited | {"OMP_NUM_THREADS": str(threads)}


@contextmanager
def started(name: str, command: str, terms: Terms) -> Iterator[Started]:
    """Run `command` with {port}, {model}, {dtype} and {threads} filled in, until the block ends.

    Raises `RuntimeError` with the end of what it printed if it offers no model in time.
    """
    port = free_port()
    filled = {"port": port, "model": terms.model, "dtype": terms.dtype, "threads": terms.threads}
    for word, value in filled.items():
        command = command.replace(f"{{{word}}}", str(value))
    environment = peer_environment(terms.threads)
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryFile("w+") as log,
        Resting.running(shlex.split(command), environment, log) as process,
    ):
        try:
            model = _wait_for_model(url, process.popen)
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{error}\n{log.read()[-2000:]}") from None
        process.rest()
        packages = loaded(process.popen.pid)
        yield Started(name, process, Server(name, CompletionClient(url, model)), packages)


def _wait_for_model(url: str, process: "subprocess.Popen[str]") -> str:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None:
        try:
            return model_of(url)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)
    raise RuntimeError(f"it ended with status {process.returncode} before it offered a model")


@dataclass(frozen=True)
class Transformers:
    """transformers in a process of its own, asked without HTTP; `batching` is static or continuous."""

    batching: str
    process: Resting

    @property
    def name(self) -> str:
        return f"transformers {self.batching}"

    def ask(self, questions: Sequence[Question], users: int) -> Measured:
        load = {
            "batching": self.batching,
            "users": users,
            "questions": [(question.prompt, question.max_tokens) for question in questions],
        }
        with self.process.awake():
            begun = time.perf_counter()
            found = _exchange(self.process.popen, json.dumps(load))
        if "error" in found:
            failed = [Answer(begun, error=found["error"]) for _ in questions]
            return Measured(failed, time.perf_counter() - begun)
        return Measured(
            [Answer(**answer) for answer in found["answers"]],
            found["seconds"],
            Books(**found["books"]),
            tuple(found["generated"]),
        )

    def cpu_seconds(self) -> dict[str, float]:
        return self.process.cpu_seconds()


@contextmanager
def transformers(terms: Terms) -> Iterator[list[Transformers]]:
    """Both ways of batching, of one model in one process. Raises `RuntimeError` if it does not load."""
    words = (terms.model, terms.dtype, terms.threads, terms.kv_tokens, terms.device)
    command = [sys.executable, "-m", "ops.bench.engines.peers.transformers_engine", *map(str, words)]
    environment = peer_environment(terms.threads)
    with Resting.running(command, environment) as process:
        _readline(process.popen)
        process.rest()
        yield [Transformers(batching, process) for batching in ("static", "continuous")]


def _exchange(process: "subprocess.Popen[str]", line: str) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(_readline(process))
    return found


def _readline(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"it ended with status {process.wait()}")
    return line


@contextmanager
def competing(
    terms: Terms, urls: Mapping[str, str], commands: Mapping[str, str], library: bool
) -> Iterator[tuple[list[Competitor], dict[str, str]]]:
    """Everybody who could be started, Quire first, and why the others could not.

    `library`: transformers, too.
    """
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        competitors: list[Competitor] = [stack.enter_context(quire(terms))]
        try:
            competitors += stack.enter_context(transformers(terms)) if library else []
        except RuntimeError as error:
            absent["transformers"] = str(error)
        others: list[tuple[str, AbstractContextManager[Competitor]]] = []
        others += [(name, server(name, url)) for name, url in urls.items()]
        others += [(name, started(name, command, terms)) for name, command in commands.items()]
        for name, other in others:
            try:
                competitors.append(stack.enter_context(other))
            except (RuntimeError, OSError) as error:
                absent[name] = str(error)
        yield competitors, absent
