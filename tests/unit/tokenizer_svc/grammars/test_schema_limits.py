"""Schemas with numbers, references and patterns that the library does not read as they are."""

import json
import re
from itertools import product
from typing import Any

import pytest

from ops.model_directory.grammars import GrammarError, Vocabulary
from tests.unit.tokenizer_svc.grammars.test_grammar_text import TOKENIZER, vocabulary
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.grammars.grammar_text import grammar_text
from tokenizer_svc.grammars.schema_limits import bounded, followed

__all__ = ["vocabulary"]

BIG = 1234567890123456789
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
LOOKING = r"^(?=.{1,3}$)[a-z]+$"


def takes(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    matcher = vocabulary.matcher(grammar)
    tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def allowed(vocabulary: Vocabulary, schema: Any, text: str, lenient: bool = False) -> bool:
    return takes(vocabulary, grammar_text("json_schema", json.dumps(schema), lenient), text)


@pytest.mark.parametrize(
    "value", [0, -1.5, 1e-7, 2**53, -(2**53), 2**60, -(2**60), 2**63 - 1024, "a", [True]]
)
@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_constants_that_are_exact_stay(vocabulary: Vocabulary, keyword: str, value: Any) -> None:
    schema = {keyword: value if keyword == "const" else ["b", value]}
    assert followed(schema, lenient=False) == schema
    text = "0.0000001" if value == 1e-7 else json.dumps(value)
    assert allowed(vocabulary, schema, text)


@pytest.mark.parametrize(
    "value", [BIG, -BIG, 2**53 + 1, 2**63, -(2**63), 2**64, 10**400, [BIG], {"a": [1, BIG]}, float("inf")]
)
def test_constants_that_are_not_exact_are_refused_or_passed_over(vocabulary: Vocabulary, value: Any) -> None:
    for schema in ({"const": value}, {"items": {"enum": [1, value]}, "type": "array"}):
        with pytest.raises(GrammarError, match="cannot hold exactly"):
            allowed(vocabulary, schema, "1")
    assert allowed(vocabulary, {"type": "integer", "const": value}, "5", lenient=True)
    assert not allowed(vocabulary, {"type": "integer", "const": value}, '"a"', lenient=True)


def test_numbers_in_annotations_may_be_any(vocabulary: Vocabulary) -> None:
    assert allowed(vocabulary, {"type": "null", "default": BIG, "examples": [BIG]}, "null")


@pytest.mark.parametrize("calls", ["hermes", "glm"])
def test_constants_of_strict_calls(vocabulary: Vocabulary, calls: str) -> None:
    function = Function("f", {"properties": {"a": {"const": BIG}}, "required": ["a"]}, strict=True)
    rules = CallRules([function], calls, ThoughtRules("", {}), required=True)
    if calls == "hermes":  # its arguments are JSON, which the library follows
        with pytest.raises(GrammarError, match="cannot hold exactly"):
            grammar_text("calls", rules.write())
        return
    text = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
    assert takes(vocabulary, grammar_text("calls", rules.write()), text.format(BIG))
    assert not takes(vocabulary, grammar_text("calls", rules.write()), text.format(int(float(BIG))))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (INT64, [5, -5, 10**18, -(10**18)], [2**63, -(2**63) - 1, 10**19, 1.5]),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, [0, BIG], [-1, 10**20]),
        ({"allOf": [INT64, {"minimum": 3}]}, [3, BIG], [2, 10**19]),
        ({"type": "integer", "exclusiveMinimum": -(2**63), "exclusiveMaximum": 2**63}, [5], [2**63]),
        ({"type": "integer", "exclusiveMaximum": 2**60}, [2**60 - 200], [2**60, 2**60 + 1]),
        ({"type": "integer", "exclusiveMaximum": 2.0**60}, [2**60 - 200], [2**60]),
        ({"type": "integer", "minimum": 2**53 + 1}, [2**53 + 2], [2**53]),
        ({"type": "integer", "maximum": -(2**53) - 1}, [-(2**53) - 2], [-(2**53)]),
        ({"type": "integer", "maximum": 2**54, "exclusiveMaximum": 2**55}, [2**54], [2**54 + 1]),
        ({"type": "integer", "minimum": 2**60, "maximum": 2**60}, [2**60], [2**60 + 1]),
        ({"type": "number", "minimum": 0, "maximum": 1e20}, [0, 2.5, 10**18], [-1]),
        *(
            ({"type": "number", "minimum": -most, "maximum": most}, [0, -2.5, 10**18], ["a"])
            for most in (3.4028234663852886e38, 1.7976931348623157e308, float("inf"))
        ),
        ({"type": "number", "minimum": -1e300}, [0.5, -(10**18)], []),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e308}, [0.5], [0, -1]),
        ({"minimum": -(2**63), "maximum": 2**63}, [1, "a", None], []),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_wide_bounds_hold(
    vocabulary: Vocabulary, schema: Any, good: list[Any], bad: list[Any], lenient: bool
) -> None:
    for value in (*good, *bad):
        assert allowed(vocabulary, schema, json.dumps(value), lenient) is (value in good), value


def test_bounds_that_only_one_inexact_number_meets_are_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError, match="Unsatisfiable"):
        allowed(vocabulary, {"type": "integer", "minimum": BIG, "maximum": BIG}, str(BIG))


@pytest.mark.parametrize(
    ("name", "bound"), [("minimum", 2**63), ("exclusiveMinimum", 10**400), ("maximum", -(10**30))]
)
def test_bounds_beyond_all_that_is_taken(vocabulary: Vocabulary, name: str, bound: int) -> None:
    schema = {"type": "integer", name: bound}
    with pytest.raises(GrammarError, match=f"'{name}' allows only"):
        allowed(vocabulary, schema, "5")
    assert allowed(vocabulary, schema, "5", lenient=True)


@pytest.mark.parametrize("calls", ["hermes", "glm"])
def test_calls_take_wide_bounds(vocabulary: Vocabulary, calls: str) -> None:
    function = Function("f", {"properties": {"a": INT64}, "required": ["a"]}, strict=True)
    rules = CallRules([function], calls, ThoughtRules("", {}), required=True)
    text = {
        "hermes": '<tool_call>\n{{"name": "f", "arguments": {{"a": {}}}}}\n</tool_call>',
        "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    }[calls]
    grammar = grammar_text("calls", rules.write())
    assert takes(vocabulary, grammar, text.format(BIG))
    assert not takes(vocabulary, grammar, text.format(2**63))


@pytest.mark.parametrize("pattern", [LOOKING, r"(a)\1", r"a\Z", "[a"])
def test_patterns_that_cannot_be_compiled(vocabulary: Vocabulary, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern, "maxLength": 4}
    with pytest.raises(GrammarError, match="regex parse error"):
        allowed(vocabulary, schema, '"abcd"')
    assert allowed(vocabulary, schema, '"abcd"', lenient=True)
    assert not allowed(vocabulary, schema, '"abcde"', lenient=True)
    by_name = {"type": "object", "patternProperties": {pattern: {"type": "null"}, "^b": {"type": "null"}}}
    assert allowed(vocabulary, by_name, '{"ab": 1}', lenient=True)
    assert not allowed(vocabulary, by_name, '{"b": 1}', lenient=True)


def test_patterns_that_can_be_compiled_are_followed_either_way(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "pattern": "^a+$"}
    for lenient in (False, True):
        assert bounded(schema, lenient) == schema
        assert not allowed(vocabulary, schema, '"b"', lenient)


@pytest.mark.parametrize("calls", ["hermes", "glm"])
def test_calls_that_are_not_strict_take_any_pattern(vocabulary: Vocabulary, calls: str) -> None:
    parameters = {"properties": {"a": {"type": "string", "pattern": LOOKING}}, "required": ["a"]}
    text = {
        "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": "abcd"}}\n</tool_call>',
        "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>abcd</arg_value>\n</tool_call>",
    }[calls]
    for strict in (False, True):
        rules = CallRules(
            [Function("f", parameters, strict)], calls, ThoughtRules("", {}), required=True
        ).write()
        if strict:
            with pytest.raises(GrammarError):
                takes(vocabulary, grammar_text("calls", rules), text)
        else:
            assert takes(vocabulary, grammar_text("calls", rules), text)


def test_a_decimal_of_pydantic_is_followed(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "pattern": DECIMAL}
    same = followed(schema, lenient=False)["pattern"]
    for length in range(7):
        for text in map("".join, product("+-.01a", repeat=length)):
            assert bool(re.search(DECIMAL, text)) == bool(re.search(same, text)), text
    for text, good in (("0012.50", True), ("-.5", True), ("+7.", True), ("", False), ("-.", False)):
        assert allowed(vocabulary, schema, json.dumps(text)) is good, text


ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)


def test_an_address_of_zod_is_followed(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "format": "email", "pattern": ZOD_EMAIL}
    same = followed(schema, lenient=False)["pattern"]
    for length in range(5):
        for name in map("".join, product("a_'.+", repeat=length)):
            for text in (f"{name}@b.cd", f"a@{name}.cd", f"a@b.{name}"):
                assert bool(re.search(ZOD_EMAIL, text)) == bool(re.search(same, text)), text
    for text, good in (("a.b+c@d-e.fg", True), (".a@b.cd", False), ("a..b@c.de", False), ("a@b", False)):
        assert allowed(vocabulary, schema, json.dumps(text)) is good, text


@pytest.mark.parametrize("calls", ["hermes", "glm"])
def test_an_address_of_zod_is_an_argument(vocabulary: Vocabulary, calls: str) -> None:
    address = {"type": "string", "format": "email", "pattern": ZOD_EMAIL}
    function = Function("f", {"properties": {"a": address}, "required": ["a"]}, strict=True)
    rules = CallRules([function], calls, ThoughtRules("", {}), required=True)
    text = {
        "hermes": '<tool_call>\n{{"name": "f", "arguments": {{"a": "{}"}}}}\n</tool_call>',
        "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    }[calls]
    grammar = grammar_text("calls", rules.write())
    assert takes(vocabulary, grammar, text.format("a.b@c.de"))
    for wrong in ("a..b@c.de", "a@b", "a"):
        assert not takes(vocabulary, grammar, text.format(wrong))


def test_a_pattern_that_looks_around_needs_a_format_beside_it(vocabulary: Vocabulary) -> None:
    pattern = r"^(?=.{1,253}\.?$)[a-z.]+$"
    beside = {"type": "string", "format": "hostname", "pattern": pattern}
    assert allowed(vocabulary, beside, '"a.b"')
    assert not allowed(vocabulary, beside, '"-a"')
    assert not allowed(vocabulary, beside | {"pattern": "^a+$"}, '"b"'), "one that can be followed is"
    for kind in ("regex", "color", 5):
        with pytest.raises(GrammarError):
            allowed(vocabulary, beside | {"format": kind}, '"a.b"')


NOTHING: list[dict[str, Any]] = [
    *({"uniqueItems": False, "propertyNames": names} for names in ({"type": "string"}, {}, True)),
    {"required": None, "enum": None, "properties": None, "pattern": None, "maxLength": None, "default": None},
    {"items": {"required": None}, "additionalProperties": None, "anyOf": None, "$ref": None},
]


@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("lenient", [False, True])
def test_keywords_that_ask_for_nothing(
    vocabulary: Vocabulary, nothing: dict[str, Any], lenient: bool
) -> None:
    for text in ('{"a": [1, 1]}', "[1, 1]", '"a"', "null"):
        assert allowed(vocabulary, nothing, text, lenient), text
    within = {
        "type": "object",
        "properties": {"type": nothing, "a": {"$ref": "#/$defs/b"}},
        "$defs": {"b": nothing},
    }
    assert allowed(vocabulary, within, '{"type": "x", "a": 1}', lenient)


def test_null_is_a_constant(vocabulary: Vocabulary) -> None:
    for schema in ({"const": None}, {"enum": [None]}):
        assert allowed(vocabulary, schema, "null")
        assert not allowed(vocabulary, schema, "1")


def test_a_map_of_zod_is_followed(vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "number"},
    }
    assert allowed(vocabulary, schema, '{"a": 1}')
    assert not allowed(vocabulary, schema, '{"a": "b"}')
    with pytest.raises(GrammarError, match="propertyNames"):
        allowed(vocabulary, schema | {"propertyNames": {"enum": ["a"]}}, '{"a": 1}')


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2.0, "maxLength": 3.0}, '"ab"', '"a"'),
        ({"type": "array", "minItems": 1.0, "maxItems": 2.0}, "[1]", "[]"),
        (
            {"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 2e0},
            '{"a":1,"b":1}',
            '{"a":1}',
        ),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_whole_numbers_may_have_a_fraction_of_zero(
    vocabulary: Vocabulary, schema: Any, good: str, bad: str, lenient: bool
) -> None:
    assert allowed(vocabulary, schema, good, lenient)
    assert not allowed(vocabulary, schema, bad, lenient)
    with pytest.raises(GrammarError):
        allowed(vocabulary, {"type": "string", "minLength": 1.5}, '"ab"', lenient)


@pytest.mark.parametrize("kind", ["int", "any", "OBJECT", "None", ["string", "date"], 5, [{}]])
def test_what_is_no_type_is_passed_over(vocabulary: Vocabulary, kind: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": kind, "maxLength": 1}, "type": {"type": "null"}}}
    assert allowed(vocabulary, schema, '{"a": 5, "type": null}', lenient=True)
    assert not allowed(vocabulary, schema, '{"a": "bc"}', lenient=True)
    assert not allowed(vocabulary, schema, '{"type": 5}', lenient=True)
    with pytest.raises(GrammarError):
        allowed(vocabulary, schema, '{"a": 5}')


def test_a_property_that_is_required_is_listed(vocabulary: Vocabulary) -> None:
    inner = {"properties": {"a": {"type": "null"}}, "required": ["a", "q"], "additionalProperties": False}
    schema = {"type": "array", "items": {"type": "object"} | inner}
    assert allowed(vocabulary, schema, '[{"a": null, "q": 5}]', lenient=True)
    for text in ('[{"a": null}]', '[{"a": null, "q": 5, "r": 1}]', '[{"a": 5, "q": 5}]'):
        assert not allowed(vocabulary, schema, text, lenient=True)
    with pytest.raises(GrammarError, match="Unsatisfiable"):
        allowed(vocabulary, {"type": "object"} | inner, '{"a": null, "q": 5}')


@pytest.mark.parametrize("name", ["größe", "a b", "a<b>", "a[0]", "a`", 'a"|^{', "%", "a~0b", "日本"])
def test_references_may_have_any_character(vocabulary: Vocabulary, name: str) -> None:
    key, ref = name.replace("~0", "~"), name.replace("%", "%25")
    schema = {"$defs": {key: {"type": "null"}}, "$ref": f"#/$defs/{ref}"}
    assert allowed(vocabulary, schema, "null")
    assert not allowed(vocabulary, schema, "1")


def test_references_to_what_is_spelled_by_codes(vocabulary: Vocabulary) -> None:
    schema = {"$ref": "#/$defs/gr%C3%B6%C3%9Fe", "$defs": {"größe": {"type": "null"}}}
    assert allowed(vocabulary, schema, "null")
    function = Function("f", {"properties": {"a": {"$ref": schema["$ref"]}}, "$defs": schema["$defs"]})
    rules = CallRules([function], "glm", ThoughtRules("", {}), required=True)
    text = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>null</arg_value>\n</tool_call>"
    assert takes(vocabulary, grammar_text("calls", rules.write()), text)
