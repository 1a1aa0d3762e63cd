"""Values of JSON that a model wrote in a text."""

import json
import sys
from typing import NoReturn

from gateway.api.parsers.schema_types import kinds_of

CONSTANTS = {"True": "true", "False": "false", "None": "null"}
"""Some write Python's."""


def value_of(text: str, types: frozenset[str]) -> object:
    """The value that a text stands for, of one of these types of JSON Schema; none: of any type."""
    if types == {"string"}:
        return text
    try:
        value = DECODER.decode(CONSTANTS.get(text.strip(), text.strip()))
    except (ValueError, RecursionError):
        return text
    return value if "string" not in types or types & kinds_of(value) else text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    """The nearest number that JSON can carry on: beyond those that fit, the largest."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(number)))


DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, strict=False)
"""Reads JSON, and no constant that JSON does not have. Strings may have new lines and tabs as they are."""
