"""The processes that render a model's chat template, as their owner sees them.

A template is a program that came with the model, and a conversation comes from anywhere. Together they may
loop for ever or fill the memory, and nothing within a process can stop that. So `render_main.py` renders in a
process of its own, with bounds on its memory and time.

Each process renders one conversation at a time, for tenants in turns. The first process gives a conversation
`QUICK_SECONDS`. What takes longer goes to a second process, which is started for the first such conversation.
So a slow conversation makes those of other tenants wait for a moment, and not for all the time that it may
have.
"""

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ops.runtime.turns import Turns
from tokenizer_svc.child import Child
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.templates.template import USUAL, Rendering
from tokenizer_svc.templates.tools_as_text import Spelling

CPU_SECONDS = 2.0
"""Processor time for one conversation. A long one takes some milliseconds."""
QUICK_SECONDS = 0.1
"""Processor time for one conversation in the process where most of them are rendered."""
WALL_SECONDS = 30.0
"""A process that takes longer than this for one conversation hangs: its bound on time is far less."""
QUICK_WALL_SECONDS = 3.0
"""The same of that process."""
EXIT_SECONDS = 1.0
"""Time for a process to be gone that has closed its pipe."""
ANSWER_BYTES = 2**26
"""Of one text as JSON. A template renders 4 million characters at most."""

log = logging.getLogger(__name__)


class Renderer:
    """A chat template that is rendered elsewhere."""

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str],
        seconds: float = CPU_SECONDS,
        tool_source: str | None = None,
        takes_templates: bool = False,
        spelling: Spelling | None = None,
    ) -> None:
        """`variables`: what the template sees besides the conversation, such as bos_token.

        `seconds`: of processor time for one conversation. `tool_source`: the template of conversations with
        functions; None: the same. `takes_templates`: a conversation may bring a template of its own.
        `spelling`: see `ChatTemplate`.
        """
        self._takes_templates = takes_templates
        template = {
            "source": source,
            "tool_source": tool_source,
            "variables": dict(variables),
            "seconds": seconds,
            "spelling": None if spelling is None else asdict(spelling),
        }
        self._quick = _Lane(template, min(QUICK_SECONDS, seconds), QUICK_WALL_SECONDS)
        self._slow = _Lane(template, seconds, WALL_SECONDS)

    async def start(self) -> None:
        """Start the first process. Raises `ModelDirectoryError` if the template does not compile."""
        await self._quick.start()

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        tools: Sequence[Any] = (),
        tenant: str = "",
        rendering: Rendering = USUAL,
    ) -> str:
        """See `ChatTemplate.render`. Too much time or memory raises `InvalidRequestError`, too.

        `tenant`: on whose behalf it is rendered. Tenants take turns.
        """
        if rendering.template and not self._takes_templates:
            what = "this deployment takes no chat templates of clients (QUIRE_CLIENT_TEMPLATES)"
            raise InvalidRequestError("chat_template", what)
        question: dict[str, Any] = {"messages": messages, "arguments": arguments, "tools": tools}
        if rendering is not USUAL:
            question["rendering"] = asdict(rendering)
        answer = await self._quick.ask(question, tenant)
        if answer.get("slow"):
            answer = await self._slow.ask(question, tenant)
        if "error" in answer:
            raise InvalidRequestError(answer["param"], answer["error"])
        return str(answer["text"])

    async def close(self) -> None:
        """End the processes."""
        await self._quick.close()
        await self._slow.close()


class _Lane:
    """A process, which is started when it is needed, and the turns at it."""

    def __init__(self, template: Mapping[str, Any], seconds: float, wall_seconds: float) -> None:
        """`seconds`: of processor time for one conversation. `wall_seconds`: who needs more of them hangs."""
        self._template, self._seconds, self._wall_seconds = template, seconds, wall_seconds
        self.child = Child("tokenizer_svc.templates.render_main", ANSWER_BYTES)
        self._turns = Turns()
        self._exchange: asyncio.Task[dict[str, Any]] | None = None
        """The newest one. Its caller may have left: its answer is read all the same, before the next one."""

    async def ask(self, question: Mapping[str, Any], tenant: str) -> dict[str, Any]:
        """The answer of the process. It is marked as `slow` if time was what it lacked."""
        async with self._turns.turn(tenant):
            if self._exchange is not None:
                await asyncio.wait([self._exchange])
            self._exchange = asyncio.create_task(self._exchanged({**question, "seconds": self._seconds}))
            return await asyncio.shield(self._exchange)

    async def close(self) -> None:
        """End the process."""
        if self._exchange is not None:
            self._exchange.cancel()
        await self.child.end()

    async def _exchanged(self, question: Mapping[str, Any]) -> dict[str, Any]:
        failure = {"param": "messages", "error": "the model's chat template does not get through this"}
        # If somebody else ended the process, another one can answer; if the question did, none can.
        for _ in range(2):
            try:
                if self.child.process is None:
                    await self.start()
                async with asyncio.timeout(self._wall_seconds):
                    await self.child.send(question)
                    return await self.child.receive()
            except RecursionError:
                return {**failure, "error": "it is nested too deeply"}
            except TimeoutError:
                await self.child.end()
                return {**failure, "slow": True}
            except (OSError, EOFError, ValueError):
                if await self.child.end(EXIT_SECONDS) == -signal.SIGPROF:  # out of time: see `Bounded`
                    return {**failure, "slow": True}
                log.warning("the process that renders the chat template has ended")
            except BaseException:
                await self.child.end()  # there may be half a message in the pipes
                raise
        return failure

    async def start(self) -> None:
        """Start the process. Raises `ModelDirectoryError` if the template does not compile within bounds."""
        await self.child.start()
        try:
            async with asyncio.timeout(WALL_SECONDS):
                await self.child.send(self._template)
                answer = await self.child.receive()
        except (OSError, EOFError, ValueError, TimeoutError):
            await self.child.end()
            raise ModelDirectoryError("the chat template does not compile: its process ended") from None
        if "error" in answer:
            await self.child.end()
            raise ModelDirectoryError(answer["error"])
