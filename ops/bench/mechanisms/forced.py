"""What drafts save of the tokens that a grammar forces, on answers in JSON of which it forces half.

The model may have random weights: what it writes into the fields of a schema does not matter.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from llguidance import LLMatcher

from gpu_worker.sampling.grammars import Grammars
from gpu_worker.step.runner import Runner
from ops.bench.load.workload import Question
from ops.bench.rig.in_process import InProcess, TrackedRequest
from ops.model_directory.end_tokens import end_tokens_in
from ops.model_directory.grammars import Vocabulary
from proto.sampling_pb2 import Grammar

NAMES = ("favourite colour", "town of birth", "name of the dog", "reason for asking")
VALUE = {"type": "string", "maxLength": 32}
SCHEMA = {
    "type": "object",
    "properties": dict.fromkeys(NAMES, VALUE),
    "required": NAMES,
    "additionalProperties": False,
}
PROMPT_TOKENS = 32
LONGEST = 512
"""Tokens of an answer at most."""


def forced(drafts: bool, users: int) -> Callable[[Runner, int], Mapping[str, float]]:
    """One measurement: `users` greedy answers at a time in JSON, and as many and as long in free text.

    `drafts`: whether the worker says which tokens are forced.
    """

    def run(runner: Runner, seed: int) -> Mapping[str, float]:
        spent = _Spent()
        forced = spent.timed(Grammars.forced) if drafts else lambda *_: {}
        with patch.multiple(Grammars, masks=spent.timed(Grammars.masks), forced=forced):
            engine, answers = _answers(runner, users, seed, _grammar(runner), LONGEST)
        length = len(answers[0].tokens[0])
        _, free = _answers(runner, users, seed, None, length)
        return {
            "output tokens/s": round(_rate(answers), 1),
            "rate over free text": round(_rate(answers) / _rate(free), 3),
            "tokens of a sequence a step": round(length / engine.times.steps, 2),
            "share of forced tokens": round(_forced_share(runner, answers[0].tokens[0]), 2),
            "share of grammars in steps": round(spent.seconds / engine.times.computing, 4),
        }

    return run


class _Spent:
    """Seconds within functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*given)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def _grammar(runner: Runner) -> Grammar:
    directory = runner.batch.grammars.directory
    assert directory is not None
    text = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), {"whitespace_flexible": False})
    return Grammar(text=text, end_tokens=end_tokens_in(directory))


def _answers(
    runner: Runner, users: int, seed: int, grammar: Grammar | None, most: int
) -> tuple[InProcess, list[TrackedRequest]]:
    """Answers of `most` tokens at most, side by side."""
    engine = InProcess(runner, shares=False)
    starts = [300 + seed * 7 + user * 3 for user in range(users)]
    prompts = [list(range(start, start + PROMPT_TOKENS)) for start in starts]
    asked = [engine.ask(Question(prompt, most), grammar=grammar) for prompt in prompts]
    engine.run()
    return engine, asked


def _rate(asked: Sequence[TrackedRequest]) -> float:
    """Tokens a second, from the first one of all on."""
    answers = [each.answer for each in asked]
    count = sum(answer.output_tokens for answer in answers) - len(answers)
    return count / (max(answer.ended for answer in answers) - min(answer.chunks[0] for answer in answers))


def _forced_share(runner: Runner, tokens: Sequence[int]) -> float:
    """Of an answer's tokens, the share of those that were the only ones that its grammar allowed."""
    grammar, directory = _grammar(runner), runner.batch.grammars.directory
    assert directory is not None
    matcher = Vocabulary(directory, runner.limits.vocab_size, grammar.end_tokens).matcher(grammar.text)
    count = 0
    for token in tokens[:-1]:
        count += bool(matcher.compute_ff_tokens())
        matcher.consume_token(token)
    return count / len(tokens)
