"""Grammars of answers, as requests ask for them: compiled on trial in a process.

A pattern comes from anywhere, and compiling it may take any time or memory. So `grammar_main.py` compiles it
in a process of its own, within bounds, one at a time, for tenants in turns. The process starts with the
first grammar. No token of another answer waits for it: its priority is low. What a trial finds is kept by
hash (`verdicts.py`), and shared with the other tokenizers of the deployment.
"""

import asyncio
import hashlib
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ops.model_directory.grammars import NICENESS
from ops.runtime.turns import Turns
from proto.sampling_pb2 import Grammar
from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.child import Child
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars.call_rules import CallRules
from tokenizer_svc.grammars.shared_verdicts import NAME_BYTES
from tokenizer_svc.grammars.verdicts import MOST_CHARACTERS as MOST_REASON
from tokenizer_svc.grammars.verdicts import MemoryVerdicts, Verdict, Verdicts
from tokenizer_svc.model.fingerprint import trial_fingerprint

COMPILE_SECONDS = 0.25
"""Processor time for one grammar. Large schemas take milliseconds. A worker compiles it again."""
RESUMED_SECONDS = 2.0
"""Processor time for the grammar of an answer that has begun: it was within the other bound before."""
WALL_SECONDS = 30.0
"""A process that takes longer than this hangs."""
START_SECONDS = 300.0
"""The same of its start. It reads the vocabulary: 262,144 tokens take 5 seconds of processor time, of which
its priority gives it about a tenth on cores that are busy."""
MOST_CHARACTERS = 65_536
"""Of what a client gives. The text of a grammar travels with each of its sequences."""
_ANSWER_BYTES = 2**20

log = logging.getLogger(__name__)


def param_of(request: TextRequest) -> str:
    """The field of the public API that asks for the request's grammar."""
    if request.HasField("thinking_budget") and not request.HasField("shape"):
        return "thinking_token_budget"
    return request.shape.param or "structured_outputs"


class Grammars:
    """Compiles what requests ask for."""

    def __init__(
        self,
        directory: Path,
        vocab_size: int,
        end_tokens: Sequence[int],
        fingerprint: str = "",
        shared: Verdicts | None = None,
    ) -> None:
        """`directory`: the model's. `end_tokens`: an answer ends with one of these, where it is complete.

        `fingerprint`: of the directory's files, see `fingerprint.py`. `shared`: where this deployment's
        tokenizers keep verdicts for each other; None: they do not.
        """
        self._first = [str(directory), vocab_size, list(end_tokens)]
        self._end_tokens = end_tokens
        self._basis = (fingerprint, vocab_size, *end_tokens)
        self._child = Child("tokenizer_svc.grammars.grammar_main", _ANSWER_BYTES, NICENESS)
        self._turns = Turns()
        self._trial: asyncio.Task[Verdict] | None = None
        self._own, self._shared = MemoryVerdicts(), shared
        self._kept: tuple[Verdicts, ...] = (self._own, shared) if shared is not None else (self._own,)

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
        if shape.compact and calls is None:  # the rules of calls say it themselves
            question["compact"] = True
        if before is not None and before.thoughts:
            question["before"] = vars(before)
        verdict = await self._verdict(question, seconds, request.tenant)
        if verdict.text is None:
            raise InvalidRequestError(param, f"{kind}: {verdict.reason}"[:MOST_REASON])
        return Grammar(text=verdict.text, end_tokens=self._end_tokens)

    async def close(self) -> None:
        """End the process."""
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.wait([self._trial])
        await self._child.end()

    async def _verdict(self, question: dict[str, Any], seconds: float, tenant: str) -> Verdict:
        """What a trial finds, or one like it has found before, here or at another tokenizer."""
        name = self._name_of(question)
        for kept in self._kept:
            found = await kept.get(name)
            if found is not None and found.settles(seconds):
                await self._own.put(name, found)
                return found
        async with self._turns.turn(tenant):
            if self._trial is not None:  # its caller may have left
                await asyncio.wait([self._trial])
            found = await self._own.get(name)  # whoever had the turn before may have asked the same
            if found is not None and found.settles(seconds):
                return found
            # A caller who leaves ends no trial that has begun: another process would have to start.
            self._trial = asyncio.create_task(self._kept_trial(name, question | {"seconds": seconds}))
            found = await asyncio.shield(self._trial)
        if self._shared is not None and not found.local:
            await self._shared.put(name, found)
        return found

    async def _kept_trial(self, name: bytes, question: dict[str, Any]) -> Verdict:
        found = await (self._tried_calls if question["kind"] == "calls" else self._tried)(question)
        await self._own.put(name, found)
        return found

    async def _tried_calls(self, question: dict[str, Any]) -> Verdict:
        """What a trial of calls finds. If it takes too long, schemas that need not be followed are left out:
        that of the function it came to, then all."""
        rules, again = CallRules.read(question["text"]), False
        while rules.may_be_looser:
            # An answer that has begun needs the grammar that it began with.
            seconds = min(question["seconds"], COMPILE_SECONDS)
            found = await self._tried(question | {"text": rules.write(), "seconds": seconds})
            if found.slow is None:
                return found
            rules, again = rules.looser("" if again else found.slow), True
        return await self._tried(question | {"text": rules.write()})

    def _name_of(self, question: dict[str, Any]) -> bytes:
        """A hash of all that a verdict depends on: the question, the model's files, the library, and this
        code with its limits."""
        basis = repr((trial_fingerprint(), self._basis, question))
        return hashlib.blake2b(basis.encode("utf-8", "surrogatepass"), digest_size=NAME_BYTES).digest()

    async def _tried(self, question: dict[str, Any]) -> Verdict:
        seconds = question["seconds"]
        # If somebody else ended the process, another one can answer; if the question did, none can.
        for _ in range(2):
            local = True
            try:
                if self._child.process is None and (problem := await self._start()):
                    return Verdict(reason=problem[:MOST_REASON], granted=seconds, local=True)
                answer = await self._ask(question, WALL_SECONDS)
            except TimeoutError:
                await self._child.end()
                break
            except (OSError, EOFError, ValueError):  # it has ended, perhaps in the middle of a line
                await self._child.end()
            except BaseException:
                await self._child.end()  # there may be half a message in the pipes
                raise
            else:
                if "text" in answer:
                    if loose := answer.get("loose"):
                        log.info("functions whose schemas are not followed, as they cannot be: %d", loose)
                    return Verdict(text=answer["text"])
                if "error" in answer:
                    granted = seconds if "scarce" in answer else 0.0
                    return Verdict(reason=answer["error"][:MOST_REASON], granted=granted)
                if answer["ended"] == -signal.SIGPROF:
                    slow = answer.get("at", "")
                    reason = f"it takes more than {seconds:g} s to compile"
                    reason = f"function {slow!r}: {reason}" if slow else reason
                    return Verdict(reason=reason[:MOST_REASON], granted=seconds, slow=slow)
                local = answer["ended"] == -signal.SIGKILL  # as by a system that is short of memory
            log.warning("the process that compiles grammars has ended")
        return Verdict(reason="it cannot be compiled", granted=seconds, local=local)

    async def _start(self) -> str:
        """Start the process. Returns why the model takes no grammars, or nothing if it does."""
        await self._child.start()
        answer = await self._ask(self._first, START_SECONDS)
        if "error" in answer:
            await self._child.end()
            return str(answer["error"])
        return ""

    async def _ask(self, question: object, seconds: float) -> dict[str, Any]:
        """Ask one question. The answer has the `text` of a grammar or an `error`, the function that was
        compiled last (`at`; empty: all together), how many functions have no schema in it although they came
        with one (`loose`), and an exit status (`ended`). With `scarce` the error is a want of memory.

        `seconds`: time that the process may take.

        Raises `OSError`, `EOFError` or `ValueError` if the process ends, and `TimeoutError`.
        """
        async with asyncio.timeout(seconds):
            await self._child.send(question)
            answer: dict[str, Any] = {}
            while "ended" not in answer:
                answer |= await self._child.receive()
            return answer
