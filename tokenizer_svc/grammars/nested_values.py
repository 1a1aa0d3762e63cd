"""Arguments of calls as MiniMax M3 writes them: members of objects and items of lists are elements, too.

A mark stands before each tag, and so behind each value: a value is written with that mark. What elements
cannot tell is JSON: objects that list no members, and values of any type.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.call_values import (
    JSON_IN_XML,
    Schema,
    Values,
    count,
    is_text,
    texts_allowed,
)
from tokenizer_svc.grammars.grammar_rules import ANY, quoted
from tokenizer_svc.grammars.schema_by_type import choices_of, texts_of
from tokenizer_svc.grammars.thought_grammar import Texts

ELEMENT = re.compile(r"[^<>/\s](?:[^<>\n]*[^<>\s])?")
"""What an element may be called."""


class NestedValues(Values):
    """The values of one function's arguments, each with the mark behind it."""

    def __init__(self, texts: Texts, root: Schema, mark: str, lenient: bool) -> None:
        """`mark`: what stands before each tag. Others: as in `Values`."""
        self._texts, self._text_mark = texts, mark
        self._mark = " ".join(texts.literals(mark))
        dialect = replace(JSON_IN_XML, string=texts.without((mark,), JSON_IN_XML.string))
        true, false, null = (f"{each} {self._mark}" for each in (dialect.true, dialect.false, dialect.null))
        super().__init__(texts.rules, root, replace(dialect, true=true, false=false, null=null), lenient)
        self._json = Values(texts.rules, root, dialect, lenient)

    def element(self, name: str, schema: Schema) -> str:
        """An argument, or a member of an object."""
        if not ELEMENT.fullmatch(name):
            raise GrammarError(f"this model's format of calls cannot spell the argument {name!r}")
        return self._between_tags(name, self.of(schema))

    def _between_tags(self, name: str, value: str) -> str:
        begin, end = (" ".join(self._texts.literals(tag)) for tag in (f"<{name}>", f"</{name}>"))
        return f"{self._mark} {begin} {value} {end}"

    def of(self, schema: Schema) -> str:
        if not is_text(schema) and (texts := texts_of(schema, self)):
            return self._rules.add(" | ".join(map(self.of, texts)))
        if is_text(schema) and schema.keys() & {"const", "enum"}:
            return self._rules.add(" | ".join(map(self._plain, texts_allowed(schema))))
        return super().of(schema)

    def _plain(self, text: str) -> str:
        if self._text_mark in text:
            raise GrammarError("this model's format of calls cannot spell one of its values")
        return f"{quoted(text)} {self._mark}"

    def _constant(self, value: object, schema: Schema = True) -> str:
        match value:
            case str() if is_text(schema) or texts_of(schema, self) or not _is_json(value):
                return self._plain(value)
            case [_, *_]:
                inner = [("item", each, self._part(schema)) for each in value]
            case dict() if value and all(ELEMENT.fullmatch(name) for name in value):
                inner = [(name, each, self._part(schema, name)) for name, each in value.items()]
            case _:
                return " | ".join(f"{quoted(each)} {self._mark}" for each in self._dialect.write(value))
        elements = (self._between_tags(name, f"({self._constant(each, part)})") for name, each, part in inner)
        return f"{' '.join(elements)} {self._mark}"

    def _part(self, schema: Schema, name: str | None = None) -> Schema:
        """The schema of a member of an object, or of the items of a list; True if none is known."""
        for choice in filter(lambda each: isinstance(each, dict), choices_of(schema, self)):
            others, listed = choice.get("additionalProperties"), choice.get("properties")
            own = listed.get(name, others) if isinstance(listed, dict) else others
            if (part := choice.get("items") if name is None else own) is not None:
                return part
        return True

    def _string(self, schema: Mapping[str, Any]) -> str:
        if not is_text(schema):
            return f"{super()._string(schema)} {self._mark}"
        return self._texts.until(
            self._text_mark, (), " & ".join(f"/{each}/" for each in self.text(schema, "(?s:.)")) or ANY
        )

    def _number(self, schema: Mapping[str, Any], plain: str) -> str:
        return f"{self._rules.add(super()._number(schema, plain))} {self._mark}"

    def _array(self, schema: Mapping[str, Any]) -> str:
        low, high = count(schema.get("minItems", 0)), schema.get("maxItems")
        if high is not None and count(high) < low:
            raise GrammarError("'maxItems' is below 'minItems'")
        item = self._rules.add(self.element("item", schema.get("items", True)))
        some = f"{item}{{{low},{'' if high is None else high}}}"
        return f"{some} {self._mark}" if low else f'({some} | "[]") {self._mark}'

    def _object(self, schema: Mapping[str, Any]) -> str:
        members = [member for member in self.members(schema) if member[1] is not False]
        if not members and schema.get("additionalProperties", True) is not False:
            return f"({self._json.of(schema)}) {self._mark}"
        items = [(self._rules.add(self.element(name, each)), needed) for name, each, needed in members]
        return self.separated(items, '""') + f" {self._mark}"

    def _any(self) -> str:
        return self._rules.add(f"{self._json.of(True)} {self._mark}")


def _is_json(text: str) -> bool:
    """Whether a text would be read as another value, where the schema does not say that it is a text."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text.strip() in ("True", "False", "None")
    return True
