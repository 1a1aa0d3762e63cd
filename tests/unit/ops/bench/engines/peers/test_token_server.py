"""Engines without a server of their own are asked as servers are."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from ops.bench.engines.peers import token_server
from ops.bench.engines.peers.token_server import Answer, Engine, server
from ops.bench.load.client import CompletionClient
from ops.bench.load.load import closed_loop
from ops.bench.load.workload import Question
from ops.bench.serve import model_of


class Counting:
    """Answers a prompt with the numbers after its last token, one a step."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, Answer]] = []
        self.most = 0

    @property
    def running(self) -> int:
        return len(self.requests)

    def add(self, prompt: list[int], max_tokens: int, answer: Answer) -> None:
        self.requests.append((prompt[-1], prompt[-1] + max_tokens, answer))
        self.most = max(self.most, len(self.requests))

    def step(self) -> None:
        left = []
        for last, end, answer in self.requests:
            answer.put(last + 1)
            if last + 1 == end:
                answer.put(None)
            else:
                left.append((last + 1, end, answer))
        self.requests = left


@pytest.fixture
def batch() -> Counting:
    return Counting()


@pytest.fixture
def url(batch: Counting) -> Iterator[str]:
    with server(batch, "counting", 0) as bound:
        threading.Thread(target=bound.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{bound.server_address[1]}"
        bound.shutdown()


def test_a_load_has_all_its_answers(url: str, batch: Counting) -> None:
    assert model_of(url) == "counting"
    questions = [[Question([number], 3 + number)] for number in range(6)]
    answers, _ = asyncio.run(closed_loop(CompletionClient(url, "counting"), questions, 3))
    assert [answer.error for answer in answers] == [""] * 6
    assert sorted(answer.output_tokens for answer in answers) == [3, 4, 5, 6, 7, 8]
    assert all(answer.prompt_tokens == 1 and answer.chunks for answer in answers)
    assert 1 <= batch.most <= 3


def test_an_engine_that_fails_ends_its_process(monkeypatch, capfd) -> None:
    """Otherwise its clients would wait for the end of their patience."""
    ended = threading.Event()
    monkeypatch.setattr(token_server.os, "_exit", lambda status: ended.set())
    assert token_server.os is os
    broken = Counting()
    broken.step = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    Engine(broken).ask([1], 1)
    assert ended.wait(10)
    assert "ZeroDivisionError" in capfd.readouterr().err
