"""Arguments of calls as Gemma 4 writes them: JSON with bare keys, and with marks in place of quotes.

Nothing is escaped between two marks, so a string cannot have a mark in it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.call_values import JSON_IN_XML, Schema, Values, spelled
from tokenizer_svc.grammars.grammar_rules import ANY, quoted
from tokenizer_svc.grammars.thought_grammar import Texts

KEY = re.compile(r"""[^<>{}\[\]",:\s](?:[^<>{}\[\]",:\n]*[^<>{}\[\]",:\s])?""")


class BareValues(Values):
    """The values of one function's arguments."""

    def __init__(self, texts: Texts, root: Schema, mark: str, end: str, lenient: bool) -> None:
        """`mark`: what stands around strings. `end`: what ends a call. Others: as in `Values`."""
        self._texts, self._mark, self._end = texts, mark, end
        super().__init__(texts.rules, root, replace(JSON_IN_XML, string=self._within(ANY)), lenient)

    def pair(self, name: str, schema: Schema) -> str:
        """An argument."""
        return f"{self._key(name)} /: ?/ {self.of(schema)}"

    def members(self, schema: Mapping[str, Any]) -> list[tuple[str, Schema, bool]]:
        # In the order in which chat templates write them, and so models, too.
        return sorted(super().members(schema), key=_place)

    def _within(self, text: str) -> str:
        """A string between its marks. `text`: a regular expression that it follows."""
        return f"{self._written(self._mark)} {self._texts.until(self._mark, [self._end], text)}"

    def _written(self, text: str) -> str:
        return " ".join(self._texts.literals(text))

    def _constant(self, value: object, schema: Schema = True) -> str:
        match value:
            case str():
                if self._mark in value or self._end in value:
                    raise GrammarError("this model's format of calls cannot spell one of its values")
                mark = self._written(self._mark)
                return f"{mark} {quoted(value)} {mark}"
            case list():
                return f'"[" {_listed([self._constant(each) for each in value])} "]"'
            case dict():
                each = [
                    f'{self._key(name)} ":" {self._constant(of)}'
                    for name, of in sorted(value.items(), key=_place)
                ]
                return f'"{{" {_listed(each)} "}}"'
        return quoted(spelled(value))

    def _key(self, name: str) -> str:
        if not KEY.fullmatch(name):
            raise GrammarError(f"this model's format of calls cannot spell the argument {name!r}")
        return quoted(name)

    def _other_key(self, listed: list[str]) -> str:
        names = f" & ~({' | '.join(map(quoted, listed))})" if listed else ""
        return self._rules.add(f"/[A-Za-z_][A-Za-z0-9_.-]*/{names}", terminal=True)

    def _string(self, schema: Mapping[str, Any]) -> str:
        return self._within(" & ".join(f"/{each}/" for each in self.text(schema, "(?s:.)")) or ANY)


def _place(member: tuple[str, *tuple[Any, ...]]) -> str:
    return member[0].lower()


def _listed(items: list[str]) -> str:
    return ' "," '.join(items) or '""'
