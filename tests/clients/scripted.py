"""`python -m tests.clients.scripted`: a scheduler whose answers are written down here.

Agents ask for more than a small model can do: they want the right one of a dozen functions called with a
command for a shell. So in their deployment a script stands where schedulers and workers are. All that such
agents depend on is real: gateway, tokenizer, template, the parser of calls.
"""

import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
from tokenizers import Tokenizer

from ops.runtime.process import run
from proto.arrays import pack, unpack
from proto.rpc import Node
from proto.sampling_pb2 import STOP
from proto.scheduler_pb2 import GenerateRequest, GenerateResponse, SequenceDelta
from proto.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server
from scheduler_svc.core.errors import ContextExceeded
from scheduler_svc.settings import SchedulerSettings
from tests.support.deployment import ROOT, SERVICES, Deployment, Process, started

CONTEXT = 131_072
"""Tokens. The instructions of an agent are 40,000 characters long."""
AT_ONCE = 16
"""Tokens of an answer in one message."""
COMMAND = "echo $((3 + 4)) foxes | tee foxes.txt"
TALE_CONTEXT = 35_000
"""Tokens, for who asks for the tale: more are refused as too long, as a real scheduler does."""
TALE = "Read the tale."
CHAPTER = "yes 'The fox and the owl went for a walk in the snow.' | head -n 380"
"""Prints a part of the tale, 19,000 characters. Longer outputs are cut by some agents."""


TEMPLATE = """
{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}
{%- for message in messages -%}
{%- if not loop.first and message.role == "system" -%}
{{- raise_exception("a system message comes first") -}}
{%- endif -%}
{%- if not loop.first and message.role == "user" and loop.previtem.role == "user" -%}
{{- raise_exception("user and assistant take turns") -}}
{%- endif -%}
{{- "<|" ~ message.role ~ "|>" -}}
{%- if message.reasoning_content -%}<think>{{ message.reasoning_content }}</think>{%- endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
"""Calls in the format of Hermes. It is as strict as templates of many models are."""


def _call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


THOUGHT = "<think>I had better look.</think>"
"""Of every answer. An agent that does not send it back gets another answer."""
_WORDS = r"((?!<\|end\|>).)*"
SUMMARIZES = rf"^(?=.*{re.escape(TALE)}).*<\|user\|>{_WORDS}(?i:summar){_WORDS}<\|end\|><\|assistant\|>$"
SCRIPT = (
    (f"{THOUGHT}.*7 foxes", "There are 7 foxes, and foxes.txt says so."),
    ("7 foxes", "I have forgotten why I looked."),
    ("a tale of snow", "It is a tale of snow."),
    (SUMMARIZES, "This is a tale of snow."),
    (re.escape(TALE), _call("bash", command=CHAPTER, description="Read")),
    ("Count the foxes.*exec_command|exec_command.*Count the foxes", _call("exec_command", cmd=COMMAND)),
    ('"name": "bash".*Count the foxes', _call("bash", command=COMMAND, description="Count")),
    ("Count the foxes", _call("Bash", command=COMMAND, description="Count")),
    ("", "A fox."),
)
"""A pattern that the prompt has, and what is said to it: the first that fits."""


class Scripted(SchedulerServicer):  # type: ignore[misc]
    """Says what the script has."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        about = json.loads((model / "tokenizer_config.json").read_text())
        self._end = self._tokenizer.token_to_id(about["eos_token"])

    async def Generate(
        self, requests: AsyncIterator[GenerateRequest], context: Any
    ) -> AsyncIterator[GenerateResponse]:
        start = (await anext(aiter(requests))).start
        prompt = self._tokenizer.decode(list(unpack(start.prompt_tokens)), skip_special_tokens=False)
        if TALE in prompt and len(start.prompt_tokens) // 4 >= TALE_CONTEXT:
            await self._refuse(len(start.prompt_tokens) // 4, context)
        answer = next(said for pattern, said in SCRIPT if re.search(pattern, prompt, re.DOTALL))
        answer = f"{THOUGHT}{answer}"
        tokens = [*self._tokenizer.encode(answer, add_special_tokens=False).ids, self._end]
        for place in range(0, len(tokens), AT_ONCE):
            last = place + AT_ONCE >= len(tokens)
            delta = SequenceDelta(
                tokens=pack(tokens[place : place + AT_ONCE]), finish_reason=STOP if last else 0
            )
            yield GenerateResponse(deltas=[delta])

    @staticmethod
    async def _refuse(tokens: int, context: Any) -> None:
        why = ContextExceeded("prompt", TALE_CONTEXT, tokens)
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, str(why), (("quire-param", why.param),))


class ScriptedDeployment(Deployment):
    """A deployment in which the script answers."""

    def spawn(self, service: str, root: Path = ROOT) -> Process:
        if service != "scheduler_svc":
            return super().spawn(service, root)
        command, log = (sys.executable, "-m", "tests.clients.scripted"), self.directory / f"{service}.log"
        return self.add(service, started(command, self.environment_of(service), log, root))

    def start(self, services: Sequence[str] = SERVICES[1:], timeout: float = 240.0) -> Self:
        return super().start(services, timeout)


async def serve(node: Node, settings: SchedulerSettings) -> None:
    """Serve until cancelled."""
    pool = settings.served_name
    server = node.server(pool=pool, capacity=16)
    add_SchedulerServicer_to_server(Scripted(Path(settings.model)), server)
    await node.update(model=pool, workers=1, stalled=0, max_model_len=CONTEXT, capacity=16)
    await server.start()
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(0)


if __name__ == "__main__":
    run(SchedulerSettings(), "scheduler", serve)
