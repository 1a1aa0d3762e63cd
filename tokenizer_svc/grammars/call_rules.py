"""What a request asks of an answer's calls, ready to become a grammar (see `call_grammar.py`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proto.tokenizer_pb2 import CallShape, TextRequest
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.entry import CallFormat
from tokenizer_svc.formats.formats import Formats, ThoughtRules, said_in
from tokenizer_svc.grammars.call_values import ANNOTATIONS
from tokenizer_svc.grammars.schema_walk import mapped

MOST_CHARACTERS = 65_536
"""Of the schemas of all functions together, without what only describes values."""
_ABOUT = ANNOTATIONS - {"$defs", "definitions", "$id", "$schema"}
"""Keywords that no grammar depends on."""


@dataclass(frozen=True)
class Function:
    """A function that may be called."""

    name: str
    parameters: Any
    """JSON Schema of its arguments; None: it takes none."""
    strict: bool = False
    """Keywords of the schema that are not supported are an error."""
    syntax: str = ""
    """Of `definition`: lark or regex. Empty: there is none."""
    definition: str = ""
    """The grammar of its one argument, which is a text."""
    loose: bool = False
    """Of the schema only the names of arguments are followed."""

    @property
    def bound(self) -> bool:
        """Its schema or grammar must be followed."""
        return self.strict or bool(self.syntax)


@dataclass(frozen=True)
class CallRules:
    """What an answer is to be."""

    functions: Sequence[Function]
    calls: str
    """Name of the format of calls."""
    before: ThoughtRules
    required: bool = False
    """There is a call at least. Otherwise there may be text alone, or text before calls."""
    single: bool = False
    """There is one call at most."""
    text_schema: str = ""
    """JSON Schema, as JSON, of an answer without calls. Empty: any text, also before calls."""
    text_lenient: bool = False
    """Keywords of `text_schema` that are not supported are passed over."""
    text_compact: bool = False
    """An answer by `text_schema` has no white space between the parts of its JSON."""

    @staticmethod
    def read(text: str) -> "CallRules":
        """From `write`."""
        fields = json.loads(text)
        functions = [Function(**each) for each in fields["functions"]]
        return CallRules(**fields | {"functions": functions, "before": ThoughtRules(**fields["before"])})

    def write(self) -> str:
        """As JSON."""
        functions = [vars(each) for each in self.functions]
        fields = vars(self) | {"functions": functions, "before": vars(self.before)}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    @property
    def may_be_looser(self) -> bool:
        """There is a function whose schema is followed, and need not be."""
        return any(map(_may_be_looser, self.functions))

    def looser(self, name: str) -> "CallRules":
        """The same rules without the schema of this function; if it must be followed, or no function has the
        name, without those of all functions that need not be."""
        chosen = [each for each in self.functions if each.name == name and _may_be_looser(each)]
        functions = [
            replace(each, loose=True) if _may_be_looser(each) and (not chosen or each in chosen) else each
            for each in self.functions
        ]
        return replace(self, functions=functions)

    def alone(self, function: Function) -> "CallRules":
        """The same rules with this function alone, and without `text_schema`."""
        return replace(self, functions=[function], text_schema="")


def call_rules(request: TextRequest, formats: Formats, prompt: list[int]) -> CallRules | None:
    """The rules that the request's shape asks for; None if these say nothing of its calls.

    Raises `InvalidRequestError`.
    """
    shape, offered = request.shape, json.loads(request.chat.tools or "[]")
    asked = shape.or_calls if shape.HasField("or_calls") else shape.calls
    if formats.calls is None:
        if not asked.required:
            return None
        message = "this model has no format of calls: the setting tool_format may name one, as json"
        raise InvalidRequestError("tool_choice", message)
    if shape.json_schema and not _told_apart(formats.calls, json.loads(shape.json_schema)):
        return None
    functions = [_function(tool["function"], asked) for tool in offered]
    functions = [each for each in functions if asked.function in ("", each.name)]
    if not functions:
        raise InvalidRequestError("tools", "there is no function to call")
    rules = CallRules(
        functions=functions,
        calls=formats.call_name,
        before=formats.before(prompt, budget_of(request), request.lenient_budget, said_in(request.chat)),
        required=asked.required,
        single=asked.single,
        text_schema=shape.json_schema,
        text_lenient=shape.lenient,
        text_compact=shape.compact,
    )
    if len(rules.write()) > MOST_CHARACTERS:
        longest = max(functions, key=lambda each: len(repr(each)))
        message = f"the schemas of functions have at most {MOST_CHARACTERS} characters together"
        raise InvalidRequestError("tools", f"{message}; the longest is that of function {longest.name!r}")
    return rules


def _may_be_looser(function: Function) -> bool:
    return not (function.bound or function.loose)


def _told_apart(calls: CallFormat, schema: Mapping[str, Any]) -> bool:
    """Whether the first character tells a call from JSON of the schema, where calls have no mark."""
    return not calls.opening or ((calls.first or calls.call)[0] != "{" and schema.get("type") == "object")


def budget_of(request: TextRequest) -> int | None:
    """Tokens of the thought at most; None: any number."""
    return request.thinking_budget if request.HasField("thinking_budget") else None


def _function(fields: Mapping[str, Any], asked: CallShape) -> Function:
    name = fields["name"]
    grammar = asked.inputs.get(name)
    given = () if grammar is None else (grammar.syntax, grammar.definition)
    return Function(name, _bare(fields.get("parameters") or None), fields.get("strict") is True, *given)


def _bare(parameters: Any) -> Any:
    """A schema without descriptions, which may be long, and differ where grammars do not."""
    try:
        return mapped(parameters, lambda each: {key: each[key] for key in each if key not in _ABOUT})
    except RecursionError:
        return parameters
