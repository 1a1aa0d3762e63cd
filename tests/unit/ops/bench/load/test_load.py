"""The load generator against a server whose answers are known."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ops.bench.load.client import Answer, CompletionClient
from ops.bench.load.load import Bound, closed_loop, open_loop, summarize
from ops.bench.load.workload import Question, Workload, arrivals, from_trace
from ops.bench.serve import table

LONG_PROMPT = 1000
"""Prompts above it are refused by the server below."""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As many chunks as tokens were asked for, cut across packets, and a usage chunk."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    if len(body["prompt"]) > LONG_PROMPT:
        refusal = b'{"error": {"message": "too long"}}'
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal))
    else:
        chunks = [{"choices": [{"text": "é"}]}] * body["max_tokens"]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        events = [*chunks, {"choices": [], "usage": usage}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        payload = text.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(payload), 37):
            piece = payload[start : start + 37]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()


@asynccontextmanager
async def server() -> AsyncIterator[CompletionClient]:
    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        port = running.sockets[0].getsockname()[1]
        yield CompletionClient(f"http://127.0.0.1:{port}", "m")


async def test_every_question_is_asked_and_every_token_counted() -> None:
    workload = Workload(prompt_lengths=(3, 5), output_lengths=(2, 6), turns=2)
    conversations = workload.conversations(8, seed=1)
    done: list[int] = []
    async with server() as client:
        answers, seconds = await closed_loop(client, conversations, 3, done.append)
    questions = [question for conversation in conversations for question in conversation]
    summary = summarize(answers, seconds)
    assert done == list(range(1, 17))
    assert summary.errors == 0
    assert summary.prompt_tokens == sum(len(question.prompt) for question in questions)
    assert summary.output_tokens == sum(question.max_tokens for question in questions)
    assert sorted(len(one.chunks) for one in answers) == sorted(question.max_tokens for question in questions)
    assert "3 at once" in table([("3 at once", summary)])


async def test_an_open_loop_asks_at_its_times() -> None:
    conversations = [[Question([1], 1)] for _ in range(4)]
    async with server() as client:
        answers, seconds = await open_loop(client, conversations, [0.0, 0.1, 0.1, 0.2])
    begun = answers[0].sent
    assert seconds >= 0.2
    assert [round(one.sent - begun, 1) for one in sorted(answers, key=lambda one: one.sent)] == pytest.approx(
        [0.0, 0.1, 0.1, 0.2], abs=0.11
    )


async def test_errors_are_told_and_not_counted() -> None:
    conversations = [[Question([1] * 2000, 4)], [Question([1], 4)]]
    async with server() as client:
        answers, seconds = await closed_loop(client, conversations, 1)
    assert "too long" in answers[0].error
    summary = summarize(answers, seconds)
    assert (summary.requests, summary.errors, summary.output_tokens) == (2, 1, 4)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    client = CompletionClient("http://127.0.0.1:1", "m")
    assert (await client.ask(Question([1], 1))).error


def test_a_seed_draws_the_same_and_another_does_not() -> None:
    workload = Workload(shared_prefix=7, turns=2, output_lengths=(1, 9))
    assert workload.conversations(5, 3) == workload.conversations(5, 3)
    assert workload.conversations(5, 3) != workload.conversations(5, 4)
    drawn = workload.conversations(5, 3)
    prefixes = {tuple(conversation[0].prompt[:7]) for conversation in drawn}
    assert len(prefixes) == 1
    for first, second in drawn:
        assert second.prompt[: len(first.prompt)] == first.prompt
        assert len(second.prompt) > len(first.prompt) + first.max_tokens


def test_arrivals_keep_their_rate() -> None:
    times = arrivals(4000, 20.0, seed=2)
    assert times == sorted(times)
    assert 180 < times[-1] < 220


def test_a_trace_is_read_and_a_bad_line_named(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt": "Once", "max_tokens": 3, "at": 1.5}\n{"prompt": [1, 2], "max_tokens": 4}\n')
    assert from_trace(path) == ([[Question("Once", 3)], [Question([1, 2], 4)]], [1.5, 0.0])
    path.write_text('{"prompt": "Once", "max_tokens": 3}\n{"max_tokens": 3}\n')
    with pytest.raises(ValueError, match=r"trace\.jsonl:2"):
        from_trace(path)


def test_the_bound_is_on_both_latencies() -> None:
    slow_start = Answer(sent=0.0, chunks=[1.0, 1.1, 1.2], ended=1.2, output_tokens=3)
    slow_pace = Answer(sent=0.0, chunks=[0.1, 0.9, 1.7], ended=1.7, output_tokens=3)
    good = Answer(sent=0.0, chunks=[0.1, 0.2, 0.3], ended=0.3, output_tokens=3)
    bound = Bound(first_token=0.5, between_tokens=0.2)
    assert [bound.kept_by(answer) for answer in (slow_start, slow_pace, good)] == [False, False, True]
    assert summarize([slow_start, slow_pace, good], 2.0, bound).goodput == 0.5
