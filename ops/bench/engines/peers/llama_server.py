"""Continuous batching over llama.cpp's library, or over a fork's, as a server (`token_server.py`).

    PYTHON -m ops.bench.engines.peers.llama_server --bindings ik_llama_cpp --model FILE --port P --threads N

PYTHON is any that has the bindings: `ik_llama_cpp` (the package `ik-llama-cpp-python`) or `llama_cpp`
(`llama-cpp-python`). Their packages have no server of several requests at once. FILE is a model in the format
GGUF, with the type of weights that is compared. llama.cpp's own `llama-server` needs none of this.
"""

import argparse
import ctypes
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ops.bench.engines.peers.token_server import STEP_TOKENS, Answer, server

MODULES = {"llama_cpp": "llama_cpp.llama_cpp", "ik_llama_cpp": "ik_llama_cpp._ctypes_api"}
"""Modules with the library's C functions, by the package's name."""


class Token(NamedTuple):
    """A token that a step computes."""

    id: int
    position: int
    sequence: int
    """Number of its sequence, from 0."""
    is_last: bool
    """Whether the most likely token after it is asked for."""


class Model(Protocol):
    """A model with its KV cache."""

    def compute(self, tokens: Sequence[Token]) -> list[int]:
        """The most likely token after each token that `is_last`, in their order."""

    def forget(self, sequence: int) -> None:
        """Free what the cache has of a sequence."""


@dataclass
class Request:
    """A request in a slot."""

    tokens: list[int]
    """Tokens that have not been computed."""
    left: int
    """Tokens that the answer still lacks."""
    answer: Answer
    position: int = 0
    """Position of the first of `tokens`."""


class Slots:
    """See `Batch`. Decodes come first, as in llama-server; prompts take the rest of the step, in chunks."""

    def __init__(self, model: Model, slots: int) -> None:
        self._model = model
        self._requests: dict[int, Request] = {}
        """By slot."""
        self._waiting: list[Request] = []
        self._free = list(range(slots))

    @property
    def running(self) -> int:
        return len(self._requests) + len(self._waiting)

    def add(self, prompt: list[int], max_tokens: int, answer: Answer) -> None:
        self._waiting.append(Request(list(prompt), max_tokens, answer))

    def step(self) -> None:
        while self._free and self._waiting:
            self._requests[self._free.pop(0)] = self._waiting.pop(0)
        tokens: list[Token] = []
        asked: list[int] = []
        for slot, request in sorted(self._requests.items(), key=lambda each: len(each[1].tokens) > 1):
            chunk = request.tokens[: STEP_TOKENS - len(tokens)]
            whole = len(chunk) == len(request.tokens)
            for number, token in enumerate(chunk):
                last = whole and number == len(chunk) - 1
                tokens.append(Token(token, request.position + number, slot, last))
            if chunk and whole:
                asked.append(slot)
            request.tokens = request.tokens[len(chunk) :]
            request.position += len(chunk)
        for slot, token in zip(asked, self._model.compute(tokens), strict=True):
            self._answered(slot, token)

    def _answered(self, slot: int, token: int) -> None:
        request = self._requests[slot]
        request.answer.put(token)
        request.tokens = [token]
        request.left -= 1
        if request.left <= 0:
            request.answer.put(None)
            del self._requests[slot]
            self._free.append(slot)
            self._model.forget(slot)


class Library:
    """See `Model`. llama.cpp's C functions, which its forks have, too."""

    def __init__(self, functions: Any, file: Path, threads: int, slots: int, context: int) -> None:
        """`context`: tokens of a slot. Raises `RuntimeError` if the model cannot be loaded."""
        self._functions = functions
        functions.llama_backend_init()
        model = functions.llama_model_load_from_file(
            str(file).encode(), functions.llama_model_default_params()
        )
        if not model:
            raise RuntimeError(f"{file} cannot be loaded")
        params = functions.llama_context_default_params()
        params.n_ctx, params.n_seq_max = slots * context, slots
        params.n_batch = params.n_ubatch = STEP_TOKENS
        params.n_threads = params.n_threads_batch = threads
        if hasattr(params, "flash_attn"):
            # The fork's. With several sequences in a step it fails an assertion (ik-llama-cpp-python 0.1.5).
            params.flash_attn = False
        self._context = functions.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"no context for {slots} sequences of {context} tokens")
        self._vocabulary = functions.llama_vocab_n_tokens(functions.llama_model_get_vocab(model))
        self._batch = functions.llama_batch_init(STEP_TOKENS, 0, 1)
        self._forget = _forgetting(functions, self._context)

    def compute(self, tokens: Sequence[Token]) -> list[int]:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for number, token in enumerate(tokens):
            batch.token[number] = token.id
            batch.pos[number] = token.position
            batch.n_seq_id[number] = 1
            batch.seq_id[number][0] = token.sequence
            batch.logits[number] = token.is_last
        if status := self._functions.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode: status {status}")
        lasts = [number for number, token in enumerate(tokens) if token.is_last]
        return [self._likeliest(number) for number in lasts]

    def _likeliest(self, number: int) -> int:
        logits = self._functions.llama_get_logits_ith(self._context, number)
        address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, (self._vocabulary,)).argmax())

    def forget(self, sequence: int) -> None:
        self._forget(sequence)


def _forgetting(functions: Any, context: Any) -> Callable[[int], object]:
    """What frees a sequence's cache. llama.cpp has renamed it; its fork's bindings do not declare it."""
    if hasattr(functions, "llama_memory_seq_rm"):
        memory = functions.llama_get_memory(context)
        return lambda sequence: functions.llama_memory_seq_rm(memory, sequence, -1, -1)
    remove = functions._lib.llama_kv_cache_seq_rm
    remove.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
    remove.restype = ctypes.c_bool
    return lambda sequence: remove(context, sequence, -1, -1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bindings", choices=MODULES, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, default=32, help="requests at once (32)")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a request at most (1024)")
    options = parser.parse_args()
    functions = importlib.import_module(MODULES[options.bindings])
    model = Library(functions, options.model, options.threads, options.slots, options.context)
    server(Slots(model, options.slots), options.model.stem, options.port).serve_forever()


if __name__ == "__main__":
    main()
