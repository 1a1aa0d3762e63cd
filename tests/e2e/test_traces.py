"""One request is one trace through all four processes, as a real OTLP receiver sees it."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.deployment import Deployment, running
from tests.support.otlp import Receiver, Trace, attributes_of, called, receiving

LAST = {"POST /v1/completions", "tokenizer.generate", "scheduler.generate", "worker.sequence"}
"""What every service has one of, and ends last."""
FOUR = {"quire-gateway", "quire-tokenizer", "quire-scheduler", "quire-worker"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced(
    receiver: Receiver, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    settings = {
        "QUIRE_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",  # milliseconds, in place of 5,000
        "QUIRE_TRACE_RATE": "0",  # those are traced that a test wants, and what fails
        "QUIRE_TRACE_SLOW_SECONDS": "300",
        "QUIRE_LEASE_SECONDS": "60",  # a call that is made anew has spans of its own
    }
    yield from running(redis_server, tmp_path_factory.mktemp("traced"), **settings)


def from_all(services: set[str]) -> Callable[[Trace], bool]:
    """Each of these services has sent the span that it ends last."""
    return lambda trace: services <= {service for service, span in trace if span.name in LAST}


def ask(deployment: Deployment, trace_id: str, chosen: bool = True, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{deployment.url}/v1/completions",
        json={
            "model": "quire-tiny",
            "prompt": "Once upon a time",
            "max_tokens": 8,
            "temperature": 0,
            **fields,
        },
        headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-0{int(chosen)}"},
        timeout=60,
    )


def test_an_answer_is_one_trace(traced: Deployment, receiver: Receiver) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert ask(traced, trace_id).status_code == 200
    trace = receiver.trace(trace_id, from_all(FOUR))
    names = [span.name for _, span in trace]
    assert Counter(names) == Counter(
        (
            *("POST /v1/completions", "text_completion quire-tiny", "quire.Tokenizer/Generate"),
            *("tokenizer.generate", "tokenizer.encode", "quire.Scheduler/Generate", "scheduler.generate"),
            *("scheduler.waiting", "scheduler.prefill", "scheduler.decode"),
            *("worker.sequence", "worker.prefill", *["worker.step"] * names.count("worker.step")),
        )
    )
    known = {span.span_id: span.name for _, span in trace} | {bytes.fromhex("00f067aa0ba902b7"): "the client"}
    above = {span.name: known.get(span.parent_span_id, "nobody") for _, span in trace}
    assert above["POST /v1/completions"] == "the client"
    chain = ["scheduler.generate"]
    while chain[-1] in above:
        chain.append(above[chain[-1]])
    assert chain == [
        *("scheduler.generate", "quire.Scheduler/Generate", "tokenizer.generate", "quire.Tokenizer/Generate"),
        *("text_completion quire-tiny", "POST /v1/completions", "the client"),
    ]
    assert above["worker.sequence"] == "scheduler.generate"
    assert above["worker.prefill"] == "worker.sequence"
    (decode,) = called(trace, "scheduler.decode")
    assert "first token" in [event.name for event in decode.events]
    (answer,) = called(trace, "text_completion quire-tiny")
    assert attributes_of(answer)["gen_ai.usage.output_tokens"] == 8
    assert all(span.status.code != 2 for _, span in trace), "an error where there was none"


def test_a_long_prompt_comes_in_chunks(traced: Deployment, receiver: Receiver) -> None:
    trace_id = "5bf92f3577b34da6a3ce929d0e0e4736"
    prompt = [1 + number % 50 for number in range(300)]
    assert ask(traced, trace_id, prompt=prompt, max_tokens=2).status_code == 200
    trace = receiver.trace(trace_id, from_all(FOUR))
    chunks = [attributes_of(span) for span in called(trace, "worker.prefill")]
    assert sum(chunk["quire.row_tokens"] for chunk in chunks) == 300
    assert all(chunk["quire.prefill_tokens"] >= chunk["quire.row_tokens"] for chunk in chunks)


def test_an_error_shows_on_the_spans_it_passed(traced: Deployment, receiver: Receiver) -> None:
    trace_id = "6bf92f3577b34da6a3ce929d0e0e4736"
    assert ask(traced, trace_id, prompt=[5] * 3000).status_code == 400
    trace = receiver.trace(trace_id, from_all(FOUR - {"quire-worker"}))
    assert not called(trace, "worker.sequence")
    assert {span.status.code for _, span in trace} == {0}, "the client's mistake"
    for name in ("POST /v1/completions", "tokenizer.generate", "scheduler.generate"):
        (span,) = called(trace, name)
        assert [event.name for event in span.events] == ["exception"]


def test_of_others_only_what_fails_is_sent(traced: Deployment, receiver: Receiver) -> None:
    fine, late = "7bf92f3577b34da6a3ce929d0e0e4736", "8bf92f3577b34da6a3ce929d0e0e4736"
    assert ask(traced, fine, chosen=False).status_code == 200
    # Long enough for the request to come to the scheduler, and not for its answer.
    assert ask(traced, late, chosen=False, max_tokens=1500, ignore_eos=True, timeout=0.5).status_code == 504
    trace = receiver.trace(late, from_all({"quire-gateway", "quire-tokenizer", "quire-scheduler"}))
    (request,) = called(trace, "POST /v1/completions")
    assert request.parent_span_id.hex() == "00f067aa0ba902b7"
    assert 2 in {span.status.code for _, span in trace}
    assert not [span for _, span in receiver.spans if span.trace_id.hex() == fine]
