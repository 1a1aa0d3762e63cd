"""The text of a call as a call: one function for each `CallSyntax` of proto/tokenizer.proto.

Each takes what is between the beginning and the end of a call, and gives None for what is no call. No text
raises, whatever a model may write.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from proto.tokenizer_pb2 import (
    BARE_KEYS,
    JSON_CALLS,
    NAMED_JSON,
    PYTHON_CALLS,
    XML_PAIRS,
    XML_PARAMETERS,
    AnswerFormat,
)

MOST_HEADER = 1024
"""Characters before the arguments of a NAMED_JSON call."""
MOST_PYTHON = 2**15
"""Characters of PYTHON_CALLS: Python's own parser is not made for hostile texts."""

Functions = Mapping[str, Mapping[str, Any]]
"""The functions that were offered, by name: for each, the properties of its schema."""


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
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        found[tool["function"]["name"]] = properties if isinstance(properties, dict) else {}
    return found


def read_calls(text: str, form: AnswerFormat, functions: Functions) -> list[Call] | None:
    """The calls that `text` is, at least one; None if it is anything else."""
    reader = _READERS.get(form.call_syntax)
    try:
        calls = reader(text, form, functions) if reader else None
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    return calls if calls and all(call.name in functions for call in calls) else None


def _json_calls(text: str, _: AnswerFormat, __: Functions) -> list[Call] | None:
    values: list[Any] = []
    text, place, calls = text.strip(), 0, []
    while place < len(text):
        value, end = _DECODER.raw_decode(text, place)
        values += value if isinstance(value, list) else [value]
        place = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]
    for value in values:
        arguments = value.get("arguments", value.get("parameters", {})) if isinstance(value, dict) else None
        if isinstance(arguments, str):
            arguments = _DECODER.decode(arguments)
        if not isinstance(arguments, dict) or not isinstance(value.get("name"), str):
            return None
        given = value.get("id")
        calls.append(Call(value["name"], _spelled(arguments), given if isinstance(given, str) else ""))
    return calls


def _named_json(text: str, form: AnswerFormat, _: Functions) -> list[Call] | None:
    begin = text.index("{")
    header = re.fullmatch(form.call_header, text[:begin].strip()) if begin <= MOST_HEADER else None
    arguments, end = _DECODER.raw_decode(text, begin)
    if header is None or text[end:].strip() not in ("", "```"):
        return None
    return [Call(header["name"], _spelled(arguments), header.groupdict().get("id") or "")]


def _xml_parameters(text: str, _: AnswerFormat, functions: Functions) -> list[Call] | None:
    if not text.rstrip().endswith("</function>"):
        return None
    calls, end = [], 0
    for function in _FUNCTION.finditer(text):
        if text[end : function.start()].strip():
            return None
        end, body = function.end(), function["body"].strip()
        if body and (not body.endswith("</parameter>") or _PARAMETER.sub("", body).strip()):
            return None
        pairs = _PARAMETER.findall(body)
        calls.append(_from_pairs(function["name"].strip(), pairs, functions))
    return calls


def _xml_pairs(text: str, _: AnswerFormat, functions: Functions) -> list[Call] | None:
    name, mark, rest = text.partition("<arg_key>")
    body = (mark + rest).strip()
    # Without the end of a last value, every beginning of one would be looked at up to the end of the text.
    if body and (not body.endswith("</arg_value>") or _PAIR.sub("", body).strip()):
        return None
    pairs = _PAIR.findall(body)
    return [_from_pairs(name.strip(), pairs, functions)]


def _python_calls(text: str, _: AnswerFormat, __: Functions) -> list[Call] | None:
    if len(text) > MOST_PYTHON:
        return None
    found = ast.parse(text.strip(), mode="eval").body
    calls = []
    for call in found.elts if isinstance(found, ast.List) else []:
        if not isinstance(call, ast.Call) or call.args:
            return None
        arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        if None in arguments:
            return None
        calls.append(Call(ast.unparse(call.func), _spelled(arguments)))
    return calls


def _bare_keys(text: str, _: AnswerFormat, __: Functions) -> list[Call] | None:
    name, brace, arguments = text.strip().partition("{")
    if not name.startswith("call:"):
        return None
    arguments = _DECODER.decode(_BARE.sub(_as_json, brace + arguments))
    return [Call(name.removeprefix("call:").strip(), _spelled(arguments))]


def _as_json(found: re.Match[str]) -> str:
    if (said := found["text"]) is not None:
        return json.dumps(said)
    if (key := found["key"]) is not None:
        return json.dumps(key.strip()) + ":"
    return _CONSTANTS.get(found[0], found[0])


def _from_pairs(name: str, pairs: Sequence[tuple[str, str]], functions: Functions) -> Call:
    """A call whose arguments are texts: its schema says which of them are JSON."""
    properties = functions.get(name, {})
    return Call(
        name, _spelled({key.strip(): _value(text, properties.get(key.strip())) for key, text in pairs})
    )


def _value(text: str, schema: object) -> object:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    try:
        # Some write Python's constants.
        return _DECODER.decode(_CONSTANTS.get(text.strip(), text.strip()))
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    """The nearest number that JSON can carry on: beyond those that fit, the largest."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(number)))


def _spelled(arguments: object) -> str:
    """As JSON. Raises `ValueError` or `TypeError` for what is no JSON object."""
    if not isinstance(arguments, dict):
        raise TypeError("arguments have names")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which no message can carry
        return json.dumps(arguments, allow_nan=False)
    return text


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_FUNCTION = re.compile(r"<function=(?P<name>[^>\n]+)>(?P<body>.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_BETWEEN = re.compile(r"[\s;,]*")
_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
# A JSON string is passed over as a whole; without an end, up to that of the text, so that it is read once.
_BARE = re.compile(
    r"""<\|"\|>(?P<text>.*?)<\|"\|>|"(?:[^"\\]|\\.)*"?|(?<=[{,])(?P<key>[^<>{}\[\]",:]+):|\b[A-Z][a-z]+\b""",
    re.DOTALL,
)
_READERS: Mapping[int, Callable[[str, AnswerFormat, Functions], list[Call] | None]] = {
    JSON_CALLS: _json_calls,
    NAMED_JSON: _named_json,
    XML_PARAMETERS: _xml_parameters,
    XML_PAIRS: _xml_pairs,
    PYTHON_CALLS: _python_calls,
    BARE_KEYS: _bare_keys,
}
