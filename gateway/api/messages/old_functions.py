"""Functions as chat completions had them before `tools`: `functions`, `function_call`, messages of functions.

An answer has one call at most, whose id is not told. So a result belongs to the call of its name.
"""

import hashlib
from typing import Any

Json = dict[str, Any]


def with_tools(fields: Json) -> Json:
    """The fields of a body, with `tools` and `tool_choice` for `functions` and `function_call`.

    Of one that has `tools` already, without these two.
    """
    functions = fields.get("functions")
    if not functions or not isinstance(functions, list):
        return fields
    if fields.get("tools"):
        return {name: value for name, value in fields.items() if name not in ("functions", "function_call")}
    tools = [{"type": "function", "function": function} for function in functions]
    found = {**fields, "tools": tools, "parallel_tool_calls": False}
    match fields.get("function_call"):
        case None:
            return found
        case {"name": name}:
            return found | {"tool_choice": {"type": "function", "function": {"name": name}}}
        case choice:
            return found | {"tool_choice": choice}


def with_calls(fields: Json) -> Json:
    """The fields of a message, with `tool_calls` for `function_call`, and as a tool's for a function's."""
    match fields:
        case {"role": "function", "name": str(name), **rest}:
            return rest | {"role": "tool", "name": name, "tool_call_id": _id(name)}
        case {"function_call": {"name": str(name)} as call, **rest} if not rest.get("tool_calls"):
            function = {key: value for key, value in call.items() if value is not None}
            return rest | {"tool_calls": [{"id": _id(name), "type": "function", "function": function}]}
    return fields


def _id(name: str) -> str:
    """The id of a call. Nine characters of this alphabet, as some models' templates demand."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:9]
