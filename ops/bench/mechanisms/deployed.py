"""Mechanisms that only whole deployments show: two that differ in one setting, asked over HTTP in turns."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from gpu_worker.settings import WorkerSettings
from ops.bench.load.client import CompletionClient
from ops.bench.load.load import closed_loop, summarize
from ops.bench.load.processes import running
from ops.bench.load.workload import Workload
from ops.launcher.deployments import Deployment

Pairs = list[tuple[Mapping[str, float], Mapping[str, float]]]
"""Figures with the mechanism and without it, round after round."""


@dataclass(frozen=True)
class Deployed:
    """Something that a setting turns on and off."""

    name: str
    work: str
    """What was done, in a line."""
    present: Mapping[str, str]
    absent: Mapping[str, str]
    workload: Workload
    users: tuple[int, ...]
    """Requests at once, one load after the other."""
    rounds_of_answers: int
    """Answers of a load for each of its users."""

    def pairs(self, settings: WorkerSettings, rounds: int, seed: int) -> Pairs:
        """Both deployments run side by side, and only one of them is asked at a time."""
        given = {
            "QUIRE_MODEL": str(settings.model),
            "QUIRE_DTYPE": settings.dtype,
            "QUIRE_KV_MEMORY": str(int(settings.kv_memory or 1 << 30)),
        }
        found: Pairs = []
        with ExitStack() as stack:
            both = [stack.enter_context(running(**{**given, **one})) for one in (self.present, self.absent)]
            for deployment in both:  # warm up
                self._asked(deployment, self.users[:1], seed)
            for number in range(1, rounds + 1):
                with_it, without = (self._asked(one, self.users, seed + number) for one in both)
                found.append((with_it, without))
        return found

    def _asked(self, deployment: Deployment, loads: Sequence[int], seed: int) -> dict[str, float]:
        figures: dict[str, float] = {}
        client = CompletionClient(deployment.url, deployment.model)
        for users in loads:
            conversations = self.workload.conversations(self.rounds_of_answers * users, seed)
            summary = summarize(*asyncio.run(closed_loop(client, conversations, users)))
            if summary.errors:
                raise RuntimeError(f"{summary.errors} answers failed")
            figures |= {
                f"output tokens/s, {users} at once": summary.output_rate,
                f"ITL p50 ms, {users} at once": summary.between_tokens["p50"],
                f"TTFT p50 ms, {users} at once": summary.first_token["p50"],
            }
        return figures


DEPLOYED = (
    Deployed(
        "planning ahead",
        "8 users over HTTP, prompts of 32 tokens: two plans under way, or one",
        {"QUIRE_PLAN_DEPTH": "2"},
        {"QUIRE_PLAN_DEPTH": "1"},
        Workload(prompt_lengths=(32,), output_lengths=(64, 64)),
        (8,),
        4,
    ),
    Deployed(
        "weights of int8",
        "answers of 64 tokens over HTTP, prompts of 32, 128 and 512: weights in int8, or in the model's type",
        {"QUIRE_QUANTIZATION": "int8"},
        {"QUIRE_QUANTIZATION": "none"},
        Workload(output_lengths=(64, 64)),
        (1, 8, 32),
        2,
    ),
    Deployed(
        "weights of int4",
        "answers of 64 tokens over HTTP, prompts of 32, 128 and 512: weights in int4, or in int8",
        {"QUIRE_QUANTIZATION": "int4"},
        {"QUIRE_QUANTIZATION": "int8"},
        Workload(output_lengths=(64, 64)),
        (1, 8, 32),
        2,
    ),
)
