"""Dates and times that answers may have, against those that Python reads."""

import json
import re
from datetime import UTC, date, datetime
from typing import Any

import pytest

from ops.model_directory.grammars import GrammarError, Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars.call_grammar import call_grammar
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.grammars.date_formats import PATTERNS, narrowed
from tokenizer_svc.grammars.grammar_text import grammar_text
from tokenizer_svc.model.tokenizer import TextModel

NOON = "2024-02-29T12:00:00Z"
LEAP_SECOND = "2024-02-29T12:00:60Z"


def exists(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def test_every_day_that_exists_and_no_other() -> None:
    pattern = re.compile(PATTERNS["date"])
    days = [(2023, month, day) for month in range(14) for day in range(33)]
    days += [(year, 2, 29) for year in range(10_000)] + [(year, 1, 1) for year in range(0, 10_000, 7)]
    for each in days:
        text = "{:04}-{:02}-{:02}".format(*each)
        assert bool(pattern.fullmatch(text)) == exists(*each), text


@pytest.mark.parametrize(
    ("time", "real"),
    [
        ("00:00:00Z", True),
        ("23:59:59.123456+14:00", True),
        ("23:59:59.1-00:30", True),
        ("23:59:60Z", False),
        ("24:00:00Z", False),
        ("12:60:00Z", False),
        ("12:00:00", False),
        ("12:00:00.1234567Z", False),
        ("12:00:00z", False),
        ("12:00:00+24:00", False),
    ],
)
def test_times(time: str, real: bool) -> None:
    assert bool(re.fullmatch(PATTERNS["time"], time)) == real
    assert bool(re.fullmatch(PATTERNS["date-time"], f"2024-02-29T{time}")) == real
    if real:
        assert datetime.fromisoformat(f"2024-02-29T{time}").astimezone(UTC)


def test_a_schema_without_dates_stays() -> None:
    schema = {"properties": {"format": {"type": "string"}, "a": {"format": "uuid", "allOf": True}}}
    assert narrowed(schema) is schema
    for value in ({"const": {"format": "date"}}, {"enum": [{"format": "date"}]}, True, {"format": 7}):
        assert narrowed(value) is value


def test_what_has_an_id_of_its_own_stays() -> None:
    own = {"$id": "https://example.org/own", "type": "string", "format": "date"}
    assert narrowed({"items": own, "$id": "https://example.org/"}) == {
        "items": own,
        "$id": "https://example.org/",
    }


@pytest.fixture(scope="module")
def model() -> TextModel:
    return TextModel.load(SHIPPED_MODEL)


@pytest.fixture(scope="module")
def vocabulary(model: TextModel) -> Vocabulary:
    return Vocabulary(SHIPPED_MODEL, model.vocab_size, list(model.end_tokens))


def accepts(vocabulary: Vocabulary, model: TextModel, grammar: str, value: Any) -> bool:
    """Whether a grammar accepts the JSON of a value, or a text as it is."""
    text = value if isinstance(value, str) else json.dumps(value)
    tokens = model.encode(text, special=False)
    matcher = vocabulary.matcher(grammar)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


STRING = {"type": "string", "format": "date-time"}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (STRING, NOON, LEAP_SECOND),
        ({**STRING, "pattern": "^2", "allOf": [{"maxLength": 30}]}, NOON, "1" + NOON[1:]),
        ({"type": ["string", "null"], "format": "date"}, None, "2023-02-29"),
        ({"items": {"$ref": "#/$defs/when"}, "$defs": {"when": STRING}}, [NOON], [LEAP_SECOND]),
        (
            {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, STRING]}}, "required": ["a"]},
            {"a": NOON},
            {"a": LEAP_SECOND},
        ),
        ({"$id": "https://example.org/", "type": "string", "format": "time"}, "12:00:00Z", "12:00:60Z"),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_answers_have_such_dates_alone(
    vocabulary: Vocabulary, model: TextModel, schema: dict[str, Any], good: Any, bad: Any, lenient: bool
) -> None:
    grammar = grammar_text("json_schema", json.dumps(schema), lenient)
    assert accepts(vocabulary, model, grammar, json.dumps(good))
    assert not accepts(vocabulary, model, grammar, json.dumps(bad))


@pytest.mark.parametrize("calls", ["hermes", "glm"])
def test_calls_have_such_dates_alone(vocabulary: Vocabulary, model: TextModel, calls: str) -> None:
    function = Function("f", {"type": "object", "properties": {"at": STRING}, "required": ["at"]})
    rules = CallRules([function], calls, ThoughtRules("", {}), required=True)
    text = {
        "hermes": '<tool_call>\n{"name": "f", "arguments": {"at": "$"}}\n</tool_call>',
        "glm": "<tool_call>f\n<arg_key>at</arg_key>\n<arg_value>$</arg_value>\n</tool_call>",
    }[calls]
    grammar = grammar_text("calls", rules.write())
    assert call_grammar(rules)
    assert accepts(vocabulary, model, grammar, text.replace("$", NOON))
    assert not accepts(vocabulary, model, grammar, text.replace("$", LEAP_SECOND))


def test_a_schema_that_cannot_be_followed_is_still_refused(vocabulary: Vocabulary) -> None:
    grammar = grammar_text("json_schema", '{"type": "string", "format": "date", "maxLength": 3}')
    with pytest.raises(GrammarError, match="Unsatisfiable"):
        vocabulary.matcher(grammar)
