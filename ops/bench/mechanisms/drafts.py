"""What drafts save on the two models that ship with Quire: text that repeats itself, and stories.

It takes real text: drawn tokens are followed by what no small model guesses.
"""

from array import array
from collections.abc import Callable, Mapping
from functools import cache

from transformers import AutoTokenizer

from gpu_worker.step.runner import Runner
from ops.bench.load.workload import Question
from ops.bench.perplexity import runner_of
from ops.bench.rig.in_process import InProcess
from ops.model_directory.settings import SHIPPED_DRAFT, SHIPPED_MODEL, SHIPPED_PREDICTOR

TOKENS = 128
"""Of an answer."""

REPEATING = "The fox sees the hen, and the hen sees the fox. " * 6
STORY = "<|begin|><|user|>Tell me a story about a {}.<|end|><|assistant|>"
HEROES = ("fox", "bear", "hen", "cat", "dog", "owl", "duck", "mouse")


def drafts(kind: str, users: int, repeating: bool) -> Callable[[Runner, int], Mapping[str, float]]:
    """One measurement: `users` greedy answers at a time. `kind`: of `QUIRE_SPECULATION`."""

    def run(_: Runner, seed: int) -> Mapping[str, float]:
        hero = [HEROES[(seed + user) % len(HEROES)] for user in range(users)]
        texts = [REPEATING if repeating else STORY.format(each) for each in hero]
        engine = InProcess(_shipped(kind), shares=False, speculation=kind)
        asked = [engine.ask(Question(_tokens(text), TOKENS)).answer for text in texts]
        engine.run()
        count = sum(answer.output_tokens for answer in asked)
        seconds = max(answer.ended for answer in asked) - min(answer.chunks[0] for answer in asked)
        return {
            "output tokens/s": round((count - users) / seconds, 1),
            "tokens of a sequence a step": round(count / users / engine.times.steps, 2),
            "tokens computed": engine.tally.computed,
        }

    return run


def predicted(tried: bool) -> Callable[[Runner, int], Mapping[str, float]]:
    """One measurement: a greedy story that is told again. Of the prediction every twentieth token is another
    one. `tried`: its tokens are drafts; otherwise there are none."""

    def run(_: Runner, seed: int) -> Mapping[str, float]:
        question = Question(_tokens(STORY.format(HEROES[seed % len(HEROES)])), TOKENS)
        told = InProcess(_shipped("off"), shares=False)
        first = told.ask(question)
        told.run()
        given = array("i", [token + (place % 20 == 19) for place, token in enumerate(first.tokens[0])])
        engine = InProcess(_shipped("off"), shares=False, speculation="ngram" if tried else "off")
        again = engine.ask(question, predicted=given if tried else None)
        engine.run()
        assert again.tokens == first.tokens
        seconds = again.answer.ended - again.answer.chunks[0]
        return {
            "output tokens/s": round((TOKENS - 1) / seconds, 1),
            "tokens of a sequence a step": round(TOKENS / engine.times.steps, 2),
            "tokens computed": engine.tally.computed,
        }

    return run


_SETTINGS: Mapping[str, dict[str, object]] = {
    "draft": {"draft_model": SHIPPED_DRAFT},
    "mtp": {"draft_model": SHIPPED_PREDICTOR, "speculation": "mtp"},
}


@cache
def _shipped(kind: str) -> Runner:
    """A runner of the shipped model, with what drafts on the worker, which takes part in every step."""
    return runner_of(_SETTINGS.get(kind, {}))


@cache
def _tokens(text: str) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(SHIPPED_MODEL)(text, add_special_tokens=False)["input_ids"]
    return ids
