"""Continuous batching over llama.cpp's library: every token is computed once, and in its place."""

import queue
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ops.bench.engines.peers.llama_server import Library, Slots, Token
from ops.bench.engines.peers.token_server import STEP_TOKENS, Answer


class Model:
    """The token after a sequence is the sum of all its tokens; checks what a KV cache needs."""

    def __init__(self) -> None:
        self.sequences: dict[int, list[int]] = {}
        self.steps: list[int] = []

    def compute(self, tokens: Sequence[Token]) -> list[int]:
        assert 0 < len(tokens) <= STEP_TOKENS
        self.steps.append(len(tokens))
        found = []
        for token in tokens:
            sequence = self.sequences.setdefault(token.sequence, [])
            assert token.position == len(sequence)
            sequence.append(token.id)
            if token.is_last:
                found.append(sum(sequence))
        return found

    def forget(self, sequence: int) -> None:
        del self.sequences[sequence]


def answered(answer: Answer) -> list[int]:
    tokens = []
    while (token := answer.get_nowait()) is not None:
        tokens.append(token)
    with pytest.raises(queue.Empty):
        answer.get_nowait()
    return tokens


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_answers_are_those_of_each_request_alone(slots: int) -> None:
    model = Model()
    batch = Slots(model, slots)
    asked = [([1], 1), ([2, 3], 5), (list(range(STEP_TOKENS + 7)), 3), ([4] * STEP_TOKENS, 2), ([5], 4)]
    answers: list[Answer] = [queue.Queue() for _ in asked]
    for (prompt, count), answer in zip(asked, answers, strict=True):
        batch.add(prompt, count, answer)
    for _ in range(100):
        if not batch.running:
            break
        batch.step()
    for (prompt, count), answer in zip(asked, answers, strict=True):
        assert answered(answer) == expected(prompt, count)
    assert model.sequences == {}


def test_decodes_come_before_prompts() -> None:
    batch, model = Slots(model := Model(), 2), model
    first: Answer = queue.Queue()
    batch.add([1], 9, first)
    batch.step()
    batch.add([1] * 3 * STEP_TOKENS, 1, queue.Queue())
    for tokens in range(2, 5):
        batch.step()
        assert first.qsize() == tokens
    assert model.steps == [1, STEP_TOKENS, STEP_TOKENS, STEP_TOKENS]


class Functions:
    """llama.cpp's C functions over `Model`, with the structures that they take."""

    def __init__(self, loads: bool = True) -> None:
        self.model, self.loads, self.removed = Model(), loads, []
        self.logits = np.zeros((STEP_TOKENS, 50), np.float32)
        self.params = SimpleNamespace(flash_attn=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("llama_memory") or name == "llama_get_memory":
            raise AttributeError(name)  # the fork's bindings
        return lambda *_: None

    def llama_model_load_from_file(self, *_: object) -> int:
        return int(self.loads)

    def llama_context_default_params(self) -> SimpleNamespace:
        return self.params

    def llama_init_from_model(self, *_: object) -> int:
        return 1

    def llama_vocab_n_tokens(self, _: object) -> int:
        return 50

    def llama_batch_init(self, tokens: int, *_: object) -> SimpleNamespace:
        names = ("token", "pos", "n_seq_id", "logits")
        return SimpleNamespace(**{name: [0] * tokens for name in names}, seq_id=[[0] for _ in range(tokens)])

    def llama_decode(self, _: object, batch: Any) -> int:
        self.logits[:] = 0
        for number in range(batch.n_tokens):
            token = Token(batch.token[number], batch.pos[number], batch.seq_id[number][0], True)
            self.logits[number, self.model.compute([token])[0]] = 1
        return 0

    def llama_get_logits_ith(self, _: object, number: int) -> int:
        return self.logits[number].ctypes.data

    @property
    def _lib(self) -> SimpleNamespace:
        class Remove:
            def __call__(_, context: int, sequence: int, *_range: int) -> None:
                self.removed.append(sequence)

        return SimpleNamespace(llama_kv_cache_seq_rm=Remove())


def test_the_library_computes_what_it_is_given() -> None:
    functions = Functions()
    library = Library(functions, Path("model.gguf"), threads=2, slots=3, context=100)
    assert library.compute([Token(3, 0, 0, True), Token(4, 0, 2, False), Token(5, 1, 2, True)]) == [3, 9]
    library.forget(2)
    assert functions.removed == [2]
    assert functions.params.n_ctx == 300
    assert functions.params.flash_attn is False


def test_a_newer_library_forgets_by_another_name() -> None:
    functions, removed = Functions(), []
    functions.llama_get_memory = lambda context: "memory"  # type: ignore[attr-defined]
    functions.llama_memory_seq_rm = lambda *asked: removed.append(asked)  # type: ignore[attr-defined]
    Library(functions, Path("model.gguf"), 1, 1, 8).forget(0)
    assert removed == [("memory", 0, -1, -1)]


def test_a_model_that_cannot_be_loaded() -> None:
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        Library(Functions(loads=False), Path("model.gguf"), 1, 1, 8)


def test_a_step_that_fails() -> None:
    functions = Functions()
    functions.llama_decode = lambda *_: 1  # type: ignore[method-assign]
    library = Library(functions, Path("model.gguf"), 1, 1, 8)
    with pytest.raises(RuntimeError, match="status 1"):
        library.compute([Token(1, 0, 0, True)])
