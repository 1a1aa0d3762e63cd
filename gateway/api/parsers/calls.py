"""The text of a call as a call: one function for each `CallSyntax` of proto/tokenizer.proto.

Each takes what is between the beginning and the end of a call, and gives None for what is no call. No text
raises, whatever a model may write.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from gateway.api.parsers.elements import elements_of, together
from gateway.api.parsers.nested import calls_in
from gateway.api.parsers.schema_types import types_of
from gateway.api.parsers.written_values import CONSTANTS, DECODER, value_of
from gateway.http.json_text import whole
from proto.tokenizer_pb2 import (
    BARE_KEYS,
    ELEMENTS,
    JSON_CALLS,
    NAMED_JSON,
    NESTED,
    PYTHON_CALLS,
    AnswerFormat,
)

MOST_HEADER = 1024
"""Characters before the arguments of a NAMED_JSON call."""
MOST_PYTHON = 2**15
"""Characters of PYTHON_CALLS: Python's own parser is not made for hostile texts."""

Functions = Mapping[str, Mapping[str, Any]]
"""The functions that were offered, by name: for each, the schema of its arguments."""


class Call(NamedTuple):
    """A call of an offered function."""

    name: str
    arguments: str
    """A JSON object."""
    id: str = ""
    """As the model gave it; empty if it did not."""


def functions_of(tools: Sequence[Mapping[str, Any]]) -> Functions:
    """The functions of a request's `tools`."""
    found = {}
    for tool in tools:
        parameters = tool["function"].get("parameters")
        found[tool["function"]["name"]] = parameters if isinstance(parameters, dict) else {}
    return found


def read_calls(text: str, form: AnswerFormat, functions: Functions, bare: bool = False) -> list[Call] | None:
    """The calls that `text` is, at least one; None if it is anything else.

    `bare`: it is JSON without a mark. Then an object with other keys than a call has is none.
    """
    reader = partial(_json_calls, bare=True) if bare else _READERS.get(form.call_syntax)
    try:
        calls = reader(text, form, functions) if reader else None
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    return calls if calls and all(call.name in functions for call in calls) else None


def _json_calls(text: str, form: AnswerFormat, _: Functions, bare: bool = False) -> list[Call] | None:
    values: list[Any] = []
    if form.call_header and (header := re.match(form.call_header, text[:MOST_HEADER])):
        text = text[header.end() :]
    text, place = _FENCES.sub("", text.strip()).strip(), 0
    while place < len(text):
        value, end = DECODER.raw_decode(text, place)
        values += value if isinstance(value, list) else [value]
        place = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]
    if bare and not all(map(_is_bare, values)):
        return None
    calls = [_from_object(value, named=_NAME_AS_KEY not in form.call_text) for value in values]
    return [call for call in calls if call] if all(calls) else None


def _is_bare(value: Any) -> bool:
    """Whether it has what a call has, and nothing else."""
    return isinstance(value, dict) and value.keys() <= _BARE and bool(value.keys() & _ARGUMENTS)


def _from_object(value: Any, named: bool = True) -> Call | None:
    """A call that is an object of JSON; None if it is none. `named`: it says the function's name; otherwise
    that is its only key."""
    if not isinstance(value, dict):
        return None
    if not named and len(value) == 1:
        ((name, arguments),) = value.items()
        value = {"name": name, "arguments": arguments}
    arguments = next((value[key] for key in ("arguments", "parameters", "args") if key in value), {})
    if isinstance(arguments, str):
        arguments = DECODER.decode(arguments)
    name, given = value.get("name", value.get("tool_name")), value.get("id")
    if not isinstance(arguments, dict) or not isinstance(name, str):
        return None
    return Call(name, _spelled(arguments), whole(given) if isinstance(given, str) else "")


def _named_json(text: str, form: AnswerFormat, _: Functions) -> list[Call] | None:
    begin = text.index("{")
    header = re.fullmatch(form.call_header, text[:begin].strip()) if begin <= MOST_HEADER else None
    arguments, end = DECODER.raw_decode(text, begin)
    if header is None or text[end:].strip() not in ("", "```"):
        return None
    return [Call(header["name"], _spelled(arguments), header.groupdict().get("id") or "")]


def _elements(text: str, form: AnswerFormat, functions: Functions) -> list[Call] | None:
    elements = elements_of(form.call_text, form.argument_text)
    # Without the end of a last element, every beginning of one would be looked at up to the end of the text.
    text = text.strip()
    if not text.endswith(elements.call_end):
        return None
    calls: list[Call] = []
    while text:
        if (call := elements.call.match(text)) is None:
            return None
        text, body = text[call.end() :].lstrip(), call["body"].strip()
        if form.arguments_text and (whole := together(form.arguments_text).fullmatch(body)):
            calls.append(Call(elements.named(call["name"]), _spelled(DECODER.decode(whole["body"].strip()))))
            continue
        if body and (not body.endswith(elements.argument_end) or elements.argument.sub("", body).strip()):
            return None
        pairs = [found.groupdict() for found in elements.argument.finditer(body)]
        pairs = [pair | {"key": elements.named(pair["key"])} for pair in pairs]
        calls.append(_from_pairs(elements.named(call["name"]), pairs, functions))
    return calls


def _python_calls(text: str, _: AnswerFormat, __: Functions) -> list[Call] | None:
    if len(text) > MOST_PYTHON:
        return None
    lines = ast.parse(_FENCES.sub("", text.strip())).body
    found = [line.value for line in lines if isinstance(line, ast.Expr)]
    if len(found) != len(lines):
        return None
    calls = []
    for call in found[0].elts if len(found) == 1 and isinstance(found[0], ast.List) else found:
        if isinstance(call, ast.Dict):
            if (told := _from_object(ast.literal_eval(_Constants().visit(call)))) is None:
                return None
            calls.append(told)
            continue
        if not isinstance(call, ast.Call) or call.args:
            return None
        arguments = {word.arg: ast.literal_eval(_Constants().visit(word.value)) for word in call.keywords}
        if None in arguments:
            return None
        calls.append(Call(ast.unparse(call.func), _spelled(arguments)))
    return calls


class _Constants(ast.NodeTransformer):
    """Reads the constants of JSON, too."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(json.loads(node.id)) if node.id in CONSTANTS.values() else node


def _bare_keys(text: str, form: AnswerFormat, functions: Functions) -> list[Call] | None:
    name, brace, arguments = text.strip().partition("{")
    if not name.startswith("call:"):
        return None
    quote = form.argument_text.rpartition("$value")[2]
    found = DECODER.decode(_bare(quote).sub(_as_json, brace + arguments))
    name = name.removeprefix("call:").strip()
    for key, value in found.items():
        types = types_of(key, functions.get(name, {}))
        if isinstance(value, str) and types and "string" not in types:
            found[key] = value_of(value, types)
    return [Call(name, _spelled(found))]


@lru_cache(maxsize=8)
def _bare(quote: str) -> re.Pattern[str]:
    """What is not JSON in BARE_KEYS. `quote`: stands around texts."""
    mark = re.escape(quote)
    # A JSON string is passed over as a whole; one without an end up to that of the text, to be read once.
    return re.compile(
        rf'{mark}(?P<text>.*?){mark}|"(?:[^"\\]|\\.)*"?|(?<=[{{,])(?P<key>[^<>{{}}\[\]",:]+):|\b[A-Z][a-z]+\b',
        re.DOTALL,
    )


def _nested(text: str, form: AnswerFormat, functions: Functions) -> list[Call] | None:
    mark = form.argument_text.partition("<$key>")[0]
    return [Call(name, _spelled(arguments)) for name, arguments in calls_in(text, mark, functions)]


def _as_json(found: re.Match[str]) -> str:
    if (said := found["text"]) is not None:
        return json.dumps(said)
    if (key := found["key"]) is not None:
        return json.dumps(key.strip()) + ":"
    return CONSTANTS.get(found[0], found[0])


def _from_pairs(name: str, pairs: Sequence[Mapping[str, str | None]], functions: Functions) -> Call:
    """A call whose arguments are texts: the model or the schema says which of them are JSON.

    `pairs`: groups of `Elements.argument`.
    """
    schema = functions.get(name, {})
    arguments = {}
    for pair in pairs:
        key, told = pair["key"] or "", pair.get("told")
        types = _TOLD[told] if told else _told_by_type(pair.get("type"), types_of(key, schema))
        arguments[key] = value_of(pair.get("data") or pair["value"] or "", types)
    return Call(name, _spelled(arguments))


def _told_by_type(told: str | None, types: frozenset[str]) -> frozenset[str]:
    """The types of a value that the model says is of type `told`. `types`: by the schema, which is right."""
    if told is None:
        return types
    named = frozenset(("integer", "number")) if told in ("integer", "number") else frozenset((told,))
    return named & types or types or named


def _spelled(arguments: object) -> str:
    """As JSON. Raises `ValueError` or `TypeError` for what is no JSON object."""
    if not isinstance(arguments, dict):
        raise TypeError("arguments have names")
    return whole(json.dumps(arguments, ensure_ascii=False, allow_nan=False))


_ARGUMENTS = frozenset(("arguments", "parameters"))
_BARE = _ARGUMENTS | {"name", "id", "type"}
"""Keys of a call without a mark."""
_NAME_AS_KEY = '{"$name":'
_TOLD = {"true": frozenset(("string",)), "false": frozenset[str]()}
_BETWEEN = re.compile(r"[\s;,]*")
_FENCES = re.compile(r"\A```\w*\n|```\Z")
"""Of a block of code in Markdown."""
_READERS: Mapping[int, Callable[[str, AnswerFormat, Functions], list[Call] | None]] = {
    JSON_CALLS: _json_calls,
    NAMED_JSON: _named_json,
    ELEMENTS: _elements,
    PYTHON_CALLS: _python_calls,
    BARE_KEYS: _bare_keys,
    NESTED: _nested,
}
