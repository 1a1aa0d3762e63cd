"""The five slow answers of docs/slow.md: each is made, traced, and its cause read from its trace.

With `WRITE_SLOW=1` the page's excerpts are made anew, otherwise they are compared with the traces.
"""

import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.asking import attempts
from tests.support.deployment import Deployment, running
from tests.support.otlp import Receiver, Trace, attributes_of, called, drawn, receiving, seconds_of

PAGE = Path(__file__).parents[2] / "docs" / "slow.md"
SHOWN = (
    *("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.response.time_to_first_chunk"),
    *("quire.attempt", "quire.requests_before", "quire.after", "quire.tokens", "quire.cached_tokens"),
    *("quire.kept_tokens", "quire.lost_tokens", "quire.row_tokens", "quire.rows", "quire.prefill_tokens"),
    "quire.waited_seconds",
)
BY_CHANCE = {"worker.step", "* pause"}
"""What a trace may have or not, as the machine is busy or not."""
PLACES = 4
"""Sequences that run at once."""
LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def small(
    receiver: Receiver, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """A deployment with little room."""
    settings = {
        "QUIRE_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # milliseconds, in place of 5,000
        "QUIRE_MAX_SLOTS": str(PLACES),
        "QUIRE_MAX_MODEL_LEN": "512",
        "QUIRE_KV_MEMORY": "5MiB",
        "QUIRE_STEP_TOKENS": "64",
    }
    yield from running(redis_server, tmp_path_factory.mktemp("slow"), **settings)


class Client:
    """Asks, each time with a trace of its own."""

    def __init__(self, deployment: Deployment, receiver: Receiver) -> None:
        self._url, self._receiver = f"{deployment.url}/v1/completions", receiver
        self._threads = ThreadPoolExecutor(16)

    def begin(self, **fields: Any) -> tuple[str, "Future[None]"]:
        """Ask; the id of the trace, and what is done when the answer is complete."""
        trace_id = secrets.token_hex(16)
        return trace_id, self._threads.submit(self._ask, trace_id, fields)

    def ask(self, **fields: Any) -> Trace:
        """Ask; the trace of the answer."""
        trace_id, answered = self.begin(**fields)
        answered.result()
        return self.trace(trace_id)

    def trace(self, trace_id: str) -> Trace:
        last = {"POST /v1/completions", "tokenizer.generate", "scheduler.generate"}

        def complete(trace: Trace) -> bool:
            ran, lost = (len(called(trace, name)) for name in ("worker.sequence", "scheduler.preempted"))
            return last <= {span.name for _, span in trace} and ran > lost

        return self._receiver.trace(trace_id, complete)

    def _ask(self, trace_id: str, fields: dict[str, Any]) -> None:
        question = {"model": "quire-tiny", "prompt": "Once upon a time", "temperature": 0, **fields}
        headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
        httpx.post(self._url, json=question, headers=headers, timeout=300).raise_for_status()


@pytest.fixture(scope="module")
def client(small: Deployment, receiver: Receiver) -> Client:
    client = Client(small, receiver)
    client.ask(max_tokens=2)  # whatever a first request has to do
    return client


def waited(trace: Trace) -> float:
    """Seconds until the first token, as the client saw them."""
    (answer,) = called(trace, "text_completion quire-tiny")
    return float(attributes_of(answer)["gen_ai.response.time_to_first_chunk"])


def outline(drawing: str) -> set[tuple[int, str]]:
    """Depth and name of every span and event."""
    lines = (re.fullmatch(r" *\d+ {1,8}\d*  ( *)(\S.*?)(  .*)?", line) for line in drawing.splitlines())
    found = ((len(line[1]), line[2]) for line in lines if line)
    return {(depth, name) for depth, name in found if name not in BY_CHANCE}


def compare(title: str, trace: Trace) -> None:
    """The page's excerpt under this title has the spans and events of the trace, and no others."""
    page, drawing = PAGE.read_text(), drawn(trace, SHOWN)
    section = re.search(rf"(## {title}\n.*?```text\n)(.*?)```", page, re.DOTALL)
    assert section, title
    if os.environ.get("WRITE_SLOW"):
        PAGE.write_text(page[: section.start(2)] + drawing + page[section.end(2) :])
    else:
        assert outline(section[2]) == outline(drawing)


def test_a_grammar_is_compiled(client: Client) -> None:
    question = {"max_tokens": 8, "guided_regex": "[A-Z][a-z]{2,9}( [a-z]{1,9}){3,20}[.]"}
    trace = client.ask(**question)
    (grammar,) = called(trace, "tokenizer.grammar")
    assert seconds_of(grammar) > waited(trace) / 2
    compare("A grammar was compiled", trace)
    again = [span for _ in range(3) for span in called(client.ask(**question), "tokenizer.grammar")]
    assert min(map(seconds_of, again)) < seconds_of(grammar) / 5


def test_it_waits_for_others(client: Client) -> None:
    for attempt in attempts():
        others = [client.begin(**LONG) for _ in range(2 * PLACES)]
        time.sleep(0.3)
        trace = client.ask(max_tokens=8)
        for _, answered in others:
            answered.result()
        request = attributes_of(called(trace, "scheduler.generate")[0])
        waited_only = not called(trace, "scheduler.preempted")  # others may need its blocks before its end
        attempt.hit = request["quire.requests_before"] >= PLACES and waited_only
    (waiting,) = called(trace, "scheduler.waiting")
    assert seconds_of(waiting) > waited(trace) / 2
    compare("It waited for others", trace)


def test_a_long_prompt_is_not_in_the_cache(client: Client) -> None:
    for first, attempt in enumerate(attempts(), 1):  # each with another prompt
        prompt = [1 + (first + number) % 97 for number in range(480)]
        cold = client.ask(prompt=prompt, max_tokens=2)
        chunks = called(cold, "worker.prefill")
        assert sum(attributes_of(chunk)["quire.row_tokens"] for chunk in chunks) == 480
        attempt.hit = sum(map(seconds_of, chunks)) > waited(cold) / 2  # no other process was kept waiting
    compare("A long prompt was not in the cache", cold)
    (again,) = called(client.ask(prompt=prompt, max_tokens=2), "scheduler.prefill")
    assert attributes_of(again)["quire.cached_tokens"] >= 464


def test_it_loses_its_place(client: Client) -> None:
    begun = [client.begin(prompt=[9 + number] * 40, **LONG) for number in range(PLACES)]
    for _, answered in begun:
        answered.result()
    traces = [client.trace(trace_id) for trace_id, _ in begun]
    victims = [trace for trace in traces if called(trace, "scheduler.preempted")]
    assert victims
    assert len(victims) < len(traces), "somebody always goes on"
    trace = victims[0]
    lost = attributes_of(called(trace, "scheduler.preempted")[0])
    assert lost["quire.after"] == "decode"
    (request,) = called(trace, "scheduler.generate")
    assert attributes_of(request)["quire.preemptions"] == len(called(trace, "scheduler.preempted"))
    compare("It lost its place to others", trace)


def test_its_worker_dies(client: Client, small: Deployment, receiver: Receiver) -> None:
    for attempt, pause in zip(attempts(), (3, 6, 12, 24, 48), strict=False):
        trace_id, answered = client.begin(prompt="The worker of this one", **LONG)
        chunk = threading.Event()
        while not chunk.wait(0.05):  # until its first chunk has been sent: it is under way
            spans = [span for _, span in receiver.spans if span.trace_id.hex() == trace_id]
            if answered.done() or any(span.name == "worker.prefill" for span in spans):
                chunk.set()
        small.kill("gpu_worker")
        attempt.hit = not answered.done()
        while attempt.hit and "a worker was lost" not in (small.directory / "scheduler_svc.log").read_text():
            time.sleep(0.05)
        time.sleep(pause)  # nobody starts another one for a while
        small.spawn("gpu_worker")
        answered.result()
        trace = client.trace(trace_id)
        again = [span for span in called(trace, "scheduler.waiting") if "quire.after" in attributes_of(span)]
        (request,) = called(trace, "POST /v1/completions")
        # On a slow machine the answer itself takes as long: then a longer pause shows the same.
        attempt.hit &= sum(map(seconds_of, again)) > seconds_of(request) / 2
    assert len(called(trace, "worker.sequence")) == 1, "the dead send nothing"
    compare("Its worker died", trace)
