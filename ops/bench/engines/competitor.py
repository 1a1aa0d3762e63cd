"""What takes part in a comparison: on which terms, and how it is asked."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_worker.models.config import read_config
from ops.bench.load.client import Answer, CompletionClient
from ops.bench.load.load import closed_loop
from ops.bench.load.workload import Question
from ops.bench.rig.accounting import Books
from ops.bench.serve import model_of

PAGE_TOKENS = 256
"""KV memory is a multiple of it: the largest block that any of them takes it in."""
BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Terms:
    """What is equal for all that are started here."""

    model: Path
    dtype: str
    """float32 or bfloat16: weights, activations and KV memory."""
    threads: int
    users: int
    """Most requests at once."""
    longest: int
    """Most tokens of a request, prompt and answer."""
    kv_tokens: int
    """Room in the KV memory of those that set it aside beforehand."""
    kv_bytes: int
    """Of one token's keys and values in all layers."""
    device: str = "cpu"
    """Where transformers computes."""
    quantization: str = "none"
    """What Quire's weights become; other servers bring weights of their own."""


@dataclass(frozen=True)
class Measured:
    """What came of a load."""

    answers: list[Answer]
    seconds: float
    books: Books | None = None
    """None: this competitor does not tell."""
    generated: tuple[list[int], ...] = ()
    """Tokens, in the order of the questions, of those that tell them."""


def terms(
    model: Path, dtype: str, threads: int, users: int, longest: int, quantization: str = "none"
) -> Terms:
    """`users`: most at once; `longest`: most tokens of a request, prompt and answer. All fit at once."""
    config = read_config(model)
    pages = -(-longest // PAGE_TOKENS) + 1
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    room, token_bytes = users * pages * PAGE_TOKENS, numbers * BYTES[dtype]
    return Terms(model, dtype, threads, users, longest, room, token_bytes, quantization=quantization)


class Competitor(Protocol):
    @property
    def name(self) -> str: ...

    def ask(self, questions: Sequence[Question], users: int) -> Measured:
        """A closed loop: `users` at once, each asking again as soon as it has its answer."""

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time used so far by each of its processes, as far as they were started here."""


@dataclass(frozen=True)
class Server:
    """Any server with an OpenAI-compatible API that somebody else has started."""

    name: str
    client: CompletionClient

    def ask(self, questions: Sequence[Question], users: int) -> Measured:
        answers, seconds = asyncio.run(closed_loop(self.client, [[one] for one in questions], users))
        return Measured(answers, seconds)

    def cpu_seconds(self) -> dict[str, float]:
        return {}


@contextmanager
def server(name: str, url: str) -> Iterator[Server]:
    """Raises `RuntimeError` if no model is offered at `url`."""
    yield Server(name, CompletionClient(url, model_of(url)))
