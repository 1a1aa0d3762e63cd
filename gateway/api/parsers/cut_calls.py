"""Several calls whose text was cut off: those of them that have their end."""

import re
from collections.abc import Callable, Mapping

from gateway.api.parsers.written_values import DECODER
from proto.tokenizer_pb2 import ELEMENTS, JSON_CALLS, NAMED_JSON, NESTED, PYTHON_CALLS, AnswerFormat

_BETWEEN = re.compile(r"[\s;,]*")
_STRING_OR_BRACKET = re.compile(r"""\"(?:[^"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|["'()\[\]{}]""", re.DOTALL)


def ended_calls(text: str, form: AnswerFormat) -> str:
    """The text of the complete calls that `text` begins with, as `calls.py` reads it; "" if there is none."""
    reader = _READERS.get(form.call_syntax)
    return reader(text.strip(), form) if reader else ""


def _json(text: str, _: AnswerFormat) -> str:
    end = place = 1 if (is_list := text.startswith("[")) else 0
    try:
        while (place := _BETWEEN.match(text, place).end()) < len(text):  # type: ignore[union-attr]
            place = end = DECODER.raw_decode(text, place)[1]
    except (ValueError, RecursionError):
        pass
    return text[:end] + "]" * is_list


def _named_json(text: str, _: AnswerFormat) -> str:
    try:
        return text[: DECODER.raw_decode(text, text.index("{"))[1]]
    except (ValueError, RecursionError):
        return ""


def _python(text: str, _: AnswerFormat) -> str:
    depth, end, is_list = 0, 0, text.startswith("[")
    for found in _STRING_OR_BRACKET.finditer(text):
        match found[0]:
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
                end = found.end() if depth == int(is_list) and found[0] in ")}" else end
            case '"' | "'":  # a string without an end
                break
    return text[:end] + "]" * is_list if end else ""


def _elements(text: str, form: AnswerFormat) -> str:
    mark = form.call_text.partition("$arguments")[2].strip()
    return "".join(text.rpartition(mark)[:2]) if mark else ""


_READERS: Mapping[int, Callable[[str, AnswerFormat], str]] = {
    JSON_CALLS: _json,
    NAMED_JSON: _named_json,
    PYTHON_CALLS: _python,
    ELEMENTS: _elements,
    NESTED: _elements,
}
