"""Fewer bits keep what the model has learnt: over pages and plans, against what transformers measured."""

import json
from collections.abc import Iterator

import pytest
from transformers import AutoTokenizer

from ops.bench import perplexity
from ops.bench.perplexity import FORMS, Reading, compared, prompts_of, read, runner_of
from ops.model_directory.settings import SHIPPED_MODEL
from ops.tiny_model.training import evaluate

LIMITS = {
    "bfloat16": (1.002, 0.99),
    "int8 weights": (1.01, 0.97),
    "int4 weights": (1.02, 0.95),
    "int8 pages": (1.005, 0.98),
    "fp8 weights": (1.01, 0.96),
    "int4 weights alone": (1.02, 0.95),
    "fp8 pages": (1.005, 0.98),
    "bfloat16, int8 weights": (1.01, 0.97),
    "bfloat16, int4 weights": (1.02, 0.95),
    "bfloat16, int8 pages": (1.005, 0.98),
    "bfloat16, int8 weights and pages": (1.01, 0.97),
    "bfloat16, fp8 weights": (1.01, 0.96),
    "bfloat16, fp8 pages": (1.005, 0.98),
    "bfloat16, fp8 weights and pages": (1.01, 0.96),
}
"""How much more perplexed than float32 a form may be, and how often it must expect the same token."""

IN_OTHERS = {f"bfloat16, {kind} {what}" for kind in ("int8", "fp8") for what in ("weights", "pages")}
"""Forms that are not read here: "weights and pages" has both of them, in bfloat16 as well."""


def reading(form: str, texts: tuple[list[list[int]], list[list[int]]]) -> Reading:
    return read(runner_of(FORMS[form] | {"threads": 1}), *texts)


@pytest.fixture(scope="module")
def texts() -> tuple[list[list[int]], list[list[int]]]:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    return evaluate.held_out_ids(tokenizer, "held_out_few"), prompts_of(tokenizer)[:3]


@pytest.fixture(scope="module", autouse=True)
def short_answers() -> Iterator[None]:
    """That there are answers is what is looked at here, not what they say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perplexity, "ANSWER", 8)
        yield


@pytest.fixture(scope="module")
def reference(texts) -> Reading:
    return reading("float32", texts)


def test_pages_and_plans_lose_nothing(reference) -> None:
    recorded = json.loads(evaluate.RECORD.read_text())["model"]
    assert reference.perplexity == pytest.approx(recorded["held_out_few"], abs=2e-4)
    assert len(reference.likeliest) == recorded["held_out_few_tokens"]


def test_every_form_has_its_limits() -> None:
    assert FORMS.keys() == {"float32", *LIMITS}
    assert LIMITS.keys() > IN_OTHERS


@pytest.mark.parametrize("name", [name for name in LIMITS if name not in IN_OTHERS])
def test_a_form_is_as_good_as_it_should_be(texts, reference, name) -> None:
    worse, same = LIMITS[name]
    found = compared(reading(name, texts), reference)
    assert 1 / worse < found["ratio"] < worse
    assert same < found["same_likeliest"] < 1  # 1: nothing has changed
    assert found["answers"] == 3
