"""Grammars of answers, as requests ask for them: compiled on trial in a process, and kept by hash.

A pattern comes from anywhere, and compiling it may take any time or memory. So `grammar_main.py` compiles it
in a process of its own, within bounds, one at a time. The process starts with the first grammar. It exchanges
lines of JSON with its owner. No token of another answer waits for it: its priority is low.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ops.runtime.grammars import NICENESS
from proto.sampling_pb2 import Grammar
from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.call_rules import CallRules
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats import ThoughtRules

COMPILE_SECONDS = 0.25
"""Processor time for one grammar. Large schemas take milliseconds. A worker compiles it again."""
RESUMED_SECONDS = 2.0
"""Processor time for the grammar of an answer that has begun: it was within the other bound before."""
WALL_SECONDS = 30.0
"""A process that takes longer than this, or to start, hangs."""
MOST_CHARACTERS = 65_536
"""Of what a client gives. The text of a grammar travels with each of its sequences."""
MOST_KEPT = 256
_ANSWER_BYTES = 2**20
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""What the process gets of the environment: no password and no token."""

log = logging.getLogger(__name__)


def param_of(request: TextRequest) -> str:
    """The field of the public API that asks for the request's grammar."""
    if request.HasField("thinking_budget") and not request.HasField("shape"):
        return "thinking_token_budget"
    return request.shape.param or "structured_outputs"


class Grammars:
    """Compiles what requests ask for."""

    def __init__(self, directory: Path, vocab_size: int, end_tokens: Sequence[int]) -> None:
        """`directory`: the model's. `end_tokens`: an answer ends with one of these, where it is complete."""
        self._first = [str(directory), vocab_size, list(end_tokens)]
        self._end_tokens = end_tokens
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._found: OrderedDict[bytes, dict[str, Any]] = OrderedDict()

    async def grammar_of(
        self, request: TextRequest, calls: CallRules | None = None, before: ThoughtRules | None = None
    ) -> Grammar:
        """The grammar that the request's shape asks for. Raises `InvalidRequestError`.

        `calls`: the rules of its calls, if it asks for calls. `before`: of what comes before other shapes. If
        the request has no shape, it comes before any text.
        """
        shape = request.shape
        param, kind = param_of(request), shape.WhichOneof("kind")
        if not request.HasField("shape") and before is not None:
            kind, text = "any", ""
        elif kind is None:
            raise InvalidRequestError(param, "there is no grammar")
        else:
            kind, text = (kind, getattr(shape, kind)) if calls is None else ("calls", calls.write())
        if len(text) > MOST_CHARACTERS:
            raise InvalidRequestError(param, f"a grammar has at most {MOST_CHARACTERS} characters")
        for name in ("beams", "rolling_context", "ignore_eos"):
            if request.HasField("beams") if name == "beams" else getattr(request, name):
                called = "use_beam_search" if name == "beams" else name
                raise InvalidRequestError(called, f"{called} does not go with a grammar")
        seconds = RESUMED_SECONDS if request.resumed else COMPILE_SECONDS
        question: dict[str, Any] = {"kind": kind, "text": text, "lenient": shape.lenient}
        if before is not None and before.thoughts:
            question["before"] = vars(before)
        found = await self._compiled(question, seconds)
        if "error" in found:
            raise InvalidRequestError(param, f"{kind}: {found['error']}"[:1000])
        return Grammar(text=found["text"], end_tokens=self._end_tokens)

    async def close(self) -> None:
        """End the process."""
        await self._end()

    async def _compiled(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        name = hashlib.blake2b(repr(question).encode("utf-8", "surrogatepass")).digest()
        async with self._turn:
            found = self._found.get(name)
            if found is None:
                found = self._found[name] = await self._answer(question | {"seconds": seconds})
                if len(self._found) > MOST_KEPT:
                    self._found.popitem(last=False)
            self._found.move_to_end(name)
        return found

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        # If somebody else ended the process, another one can answer; if the question did, none can.
        for _ in range(2):
            try:
                if self._process is None and (problem := await self._start()):
                    return problem
                answer = await self._ask(question)
            except TimeoutError:
                await self._end()
                break
            except (OSError, EOFError, ValueError):  # it has ended, perhaps in the middle of a line
                await self._end()
            except BaseException:
                await self._end()  # there may be half a message in the pipes
                raise
            else:
                if "text" in answer or "error" in answer:
                    return answer
                if answer["ended"] == -signal.SIGPROF:
                    part, most = answer.get("at", ""), question["seconds"]
                    return {"error": f"{part}it takes more than {most:g} s to compile"}
            log.warning("the process that compiles grammars has ended")
        return {"error": "it cannot be compiled"}

    async def _start(self) -> dict[str, Any] | None:
        """Start the process. Returns an answer to all questions if the model takes no grammars."""
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tokenizer_svc.grammar_main"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_ANSWER_BYTES,
            env=environment,
        )
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
        answer = await self._ask(self._first)
        if "error" in answer:
            await self._end()
            return answer
        return None

    async def _ask(self, question: object) -> dict[str, Any]:
        """Ask one question. The answer has the `text` of a grammar or an `error`, the part that was compiled
        last (`at`), and an exit status (`ended`).

        Raises `OSError`, `EOFError` or `ValueError` if the process ends, and `TimeoutError`.
        """
        assert self._process is not None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if stdin.is_closing():  # uvloop raises RuntimeError at a write
            raise EOFError
        async with asyncio.timeout(WALL_SECONDS):
            stdin.write(json.dumps(question).encode() + b"\n")
            await stdin.drain()
            answer: dict[str, Any] = {}
            while "ended" not in answer:
                line = await stdout.readline()
                if not line.endswith(b"\n"):
                    raise EOFError
                answer |= json.loads(line)
            return answer

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
