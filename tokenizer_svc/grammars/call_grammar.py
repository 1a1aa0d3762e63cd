"""The grammar of an answer that calls functions: free thoughts, then calls as the model's format spells them.

Where the format writes arguments as JSON, the library follows their schema. Other ways to write them have
grammars of their own, see `call_values.py` and `bare_values.py`. What such a grammar accepts,
`gateway/api/parsers/splitter.py` reads as calls.
"""

import json
import keyword
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

from ops.model_directory.grammars import GrammarError
from proto.tokenizer_pb2 import BARE_KEYS, NESTED, PYTHON_CALLS
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.entry import LINE, CallFormat
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.formats.mark_suffix import named
from tokenizer_svc.grammars.bare_values import KEY, BareValues
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.grammars.call_values import JSON_IN_XML, OBJECT, PYTHON, Values, is_text, texts_allowed
from tokenizer_svc.grammars.grammar_rules import ANY, quoted
from tokenizer_svc.grammars.input_grammar import InputGrammar, read_source
from tokenizer_svc.grammars.input_spellings import BareSpelling, JsonSpelling
from tokenizer_svc.grammars.lark_reader import Source
from tokenizer_svc.grammars.nested_values import ELEMENT, NestedValues
from tokenizer_svc.grammars.schema_by_type import by_type, takes_texts, texts_of
from tokenizer_svc.grammars.schema_closed import closed
from tokenizer_svc.grammars.schema_limits import bounded, followed, with_required
from tokenizer_svc.grammars.thought_grammar import SPACE, Texts

WHITESPACE = r"( |\n[ ]{0,40})?"
"""Between the parts of JSON: nothing, a space, or a new line that is indented. Without a bound a small model
may go on with spaces for ever."""
_NAME = re.compile(r"""(?!\s)[^"\\<>{}\[\]\x00-\x1f\x7f]+(?<!\s)""")
"""A function's name, in whose place every format but Python's can be read."""
_KEY = re.compile(r"[^<>\s](?:[^<>\n]*[^<>\s])?")
_KEYS = {BARE_KEYS: KEY, NESTED: ELEMENT}
"""Where it is not `_KEY`."""
_WORD = "/[A-Za-z_][A-Za-z0-9_]*/"
"""The name of an argument that is not listed, which every format can spell."""
_DIGITS = "/[0-9]{1,4}/"
_IDENTIFIER = "/[a-z0-9]{10}/"
_CDATA = ("<![CDATA[", "]]>")


def call_grammar(asked: CallRules) -> str:
    """The grammar in Lark's notation, as the library reads it. Raises `GrammarError`."""
    calls = named(CALLS, asked.calls)
    assert calls is not None  # or no call could be asked for
    return _Grammar(asked, calls, Texts(asked.before)).text()


def arguments_grammar(parameters: Any, calls: CallFormat, texts: Texts) -> str:
    """The rule of a call's arguments alone, among those of `texts`.

    `parameters`: their JSON Schema, which is followed. `calls`: how they are spelled. Raises `GrammarError`.
    """
    asked = CallRules([], "", ThoughtRules("", {}))
    return _Grammar(asked, calls, texts).arguments(Function("", parameters, strict=True))


class _Grammar:
    def __init__(self, asked: CallRules, calls: CallFormat, texts: Texts) -> None:
        self._asked, self._format, self._texts = asked, calls, texts
        self._rules, self._written = texts.rules, texts.written

    def text(self) -> str:
        form, mark = self._format, self._mark()
        in_first = bool(form.first)
        rest = form.call if in_first else form.call.removeprefix(mark)
        call = ending = self._rules.add(" | ".join(self._call(each, rest) for each in self._asked.functions))
        if not in_first and mark:
            call = self._rules.add(f"{self._written(mark)} {ending}")
        if not self._asked.single and form.between is not None:
            more = f"({self._written(form.between)} {call})*"
            # A model that writes a new line after its call has then the choice to end. Where a new line could
            # only be before a further call, small ones made the same call until `max_tokens`.
            line = self._written(LINE) if form.between in ("\n", LINE) and not form.last else ""
            ending = self._rules.add(f"{ending} {more} {line}")
        first = self._written(form.first.removeprefix(mark), {"space": ['" "?']})
        ending = self._rules.add(f"{first} {ending} {self._written(form.last)}")
        thoughts = self._texts.thoughts
        if thoughts is not None and mark == thoughts.message:
            mark = ""  # the prompt has it
        answer, spaced = f"{self._written(mark)} {ending}", True
        if self._asked.text_schema:
            answer = self._rules.add(f"{answer} | {self._shaped()}")
        elif not self._asked.required:
            answer, spaced = self._free(mark, ending), False
        shaped = bool(self._asked.text_schema)
        return self._texts.grammar(self._texts.thought_first(answer, spaced, self._begins(), shaped))

    def _shaped(self) -> str:
        """A text that follows the answer's own schema."""
        asked = self._asked
        schema = closed(json.loads(asked.text_schema))
        return self._texts.said(self._json(schema, asked.text_lenient, asked.text_compact))

    def _begins(self) -> tuple[str, ...]:
        """What begins calls, whatever their names."""
        return tuple(mark.partition("$")[0] for mark in self._format.begin)

    def _mark(self) -> str:
        """What the calls begin with; "" if nothing tells calls from a text but their first character."""
        form, thoughts = self._format, self._texts.thoughts
        begin = (form.first + form.call).partition("$")[0]
        marks = (*form.begin, *form.delimiters, thoughts.message if thoughts is not None else "")
        return max((mark for mark in marks if begin.startswith(mark)), key=len, default="")

    def _free(self, mark: str, ending: str) -> str:
        """Text, or calls after a text. `ending`: what comes after the calls' `mark`."""
        form, texts, thoughts = self._format, self._texts, self._texts.thoughts
        begins = tuple({*self._begins(), mark} - {""})
        if thoughts is not None and thoughts.message:
            # Each message has a head of its own.
            text = texts.without({*begins, thoughts.end} - {""})
            return self._rules.add(f"{self._written(mark)} {ending} | {texts.said(text)}")
        # What begins like a thought is one: as a text it could hide the beginning of a call.
        text = ANY if thoughts is None else f"{ANY} & ~(/[{SPACE}]*/ {quoted(thoughts.begin)} {ANY})"
        if not mark:
            opening = "".join(f"\\{each}" for each in form.opening)
            text = texts.without(begins, rf"/[{SPACE}]*([^{SPACE}{opening}](?s:.*))?/ & {text}")
            return self._rules.add(f"/[{SPACE}]*/ {ending} | {text}")
        said = texts.said(texts.without(begins, text))
        return self._rules.add(f"{texts.until(mark, begins, text)} {ending} | {said}")

    def _call(self, function: Function, text: str) -> str:
        """A call of the function. `text`: how the format writes a call, or the rest of it."""
        name = self._name(function.name)
        arguments = self._input(function) if function.syntax else self.arguments(function)
        places = {"name": [quoted(name)], "name|e": [quoted(_escaped(name))], "arguments": [arguments]}
        places |= {"number": [_DIGITS], "id": [_IDENTIFIER]}
        before, recipient, rest = text.partition("$recipient")
        if not recipient:
            return self._rules.add(self._written(text, places))
        # One literal: heads of other messages begin like this one, and the library takes the longest.
        *parts, last = self._texts.literals(before)
        head = (*parts, quoted(json.loads(last) + function.name))
        return self._rules.add(f"{' '.join(head)} {self._written(rest, places)}")

    def _name(self, name: str) -> str:
        if self._format.syntax == PYTHON_CALLS:
            if not all(_is_python_name(part) for part in name.split(".")):
                raise GrammarError("this model calls functions as in Python, which cannot have this name")
        elif not _NAME.fullmatch(name):
            raise GrammarError('a name has no " \\ < > { } [ ], no control characters, no space at its ends')
        return name

    def arguments(self, function: Function) -> str:
        """The rule of a call's arguments."""
        schema = {"type": "object", "properties": {}} if function.parameters is None else function.parameters
        schema = self._names_of(schema) if function.loose else bounded(schema, not function.strict)
        if schema.get("type", "object") != "object":
            raise GrammarError("the type of its parameters must be 'object'")
        schema = {"type": "object"} | schema
        if self._in_pairs():
            return self._pairs(schema, not function.strict)
        if "properties" in schema and not schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
            # Who lists the arguments means these. A model would make up more.
            own = "additionalProperties" in schema
            schema = schema if own else with_required({**schema, "additionalProperties": False})
        return self._json(schema, not function.strict)

    def _names_of(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A schema that has of this one the names of arguments, as far as they can be spelled."""
        listed, required = schema.get("properties"), schema.get("required")
        listed = listed if isinstance(listed, dict) else {}
        own = {"properties": listed, "required": [name for name in listed if name in (required or ())]}
        values = self._values(schema, lenient=True)
        try:
            members = values.members({**schema, **own})
        except GrammarError:
            members = values.members(own)
        members = [each for each in members if not self._in_pairs() or self._spells(each[0])]
        named = {name: {"type": "string"} if takes_texts(each, values) else {} for name, each, _ in members}
        needed = [name for name, _, is_needed in members if is_needed]
        return {"properties": named, "required": needed} if named else {}

    def _in_pairs(self) -> bool:
        """Whether arguments are written one by one, and not as one JSON object."""
        return bool(self._format.argument) or self._format.syntax == PYTHON_CALLS

    def _quote(self) -> str:
        """What stands around texts in BARE_KEYS."""
        return self._format.argument.rpartition("$value")[2]

    def _spells(self, argument: str) -> bool:
        if self._format.syntax == PYTHON_CALLS:
            return _is_python_name(argument)
        if '"' in argument and '"$key"' in self._format.argument:
            return False
        return bool(_KEYS.get(self._format.syntax, _KEY).fullmatch(argument))

    def _input(self, function: Function) -> str:
        """The argument that follows a grammar of its own."""
        form, source = self._format, read_source(function.syntax, function.definition)
        (name,) = function.parameters["properties"]
        if form.syntax == BARE_KEYS:
            mark = self._quote()
            return f"{quoted(name)} /: ?/ {self._written(mark)} {self._bare(source, mark, (mark, form.end))}"
        if form.argument:
            begin, end = self._around(name, as_text=True)
            return f"{self._literal(begin)} {self._bare(source, end, self._ends(end))}"
        text = InputGrammar(self._rules, source, JsonSpelling(self._rules, source.terminals)).text(r'"\""')
        if form.syntax == PYTHON_CALLS:
            return rf'{quoted(name)} "=\"" {text}'
        return rf'/\{{{WHITESPACE}"{name}":{WHITESPACE}"/ {text} /{WHITESPACE}\}}/'

    def _bare(self, source: Source, end: str, marks: Collection[str]) -> str:
        """An input as it stands, and its end. `marks`: what it cannot have in it."""
        texts, mark = self._texts, end.removesuffix(LINE)
        glue = "" if texts.literals(mark)[0].startswith("<[") else mark
        spelling = BareSpelling(self._rules, source.terminals, glue, marks, texts.without(marks))
        text = InputGrammar(self._rules, source, spelling).text(self._literal(mark))
        return f"{text} {self._literal(end.removeprefix(mark))}".strip()

    def _json(self, schema: Mapping[str, Any], lenient: bool, compact: bool = False) -> str:
        options = {"lenient": lenient, "whitespace_pattern": "" if compact else WHITESPACE}
        return self._rules.add("%json " + json.dumps({"x-guidance": options} | followed(schema, lenient)))

    def _pairs(self, schema: Mapping[str, Any], lenient: bool) -> str:
        """Arguments one by one."""
        syntax, values = self._format.syntax, self._values(schema, lenient)
        values.check(schema, OBJECT)
        items = []
        for name, each, needed in values.members(schema):
            if each is False:
                continue
            if not self._spells(name):
                raise GrammarError(f"this model's format of calls cannot spell the argument {name!r}")
            try:
                item = self._pair(name, each, values)
            except GrammarError as error:
                raise GrammarError(f"argument {name!r}: {error}") from error
            items.append((self._rules.add(item), needed))
        further = "" if items or syntax == NESTED else self._others(schema, values)
        return values.separated(items, "/, ?/" if syntax in (PYTHON_CALLS, BARE_KEYS) else '""', further)

    def _others(self, schema: Mapping[str, Any], values: Values) -> str:
        """The rule of an argument that is not listed; "" unless the schema says that there may be one."""
        if (each := schema.get("additionalProperties", False)) is False:
            return ""
        key = _WORD
        if self._format.syntax == PYTHON_CALLS:
            key = f"{_WORD} & ~({' | '.join(map(quoted, keyword.kwlist))})"
        key = self._rules.add(key, terminal=True)
        if self._format.syntax == BARE_KEYS:
            return self._rules.add(f"{key} /: ?/ {values.of(each)}")
        if self._format.syntax == PYTHON_CALLS:
            return self._rules.add(f"{key} /=/ {values.of(each)}")
        return self._rules.add(self._element("$key", each, values, key))

    def _values(self, schema: Mapping[str, Any], lenient: bool) -> Values:
        form = self._format
        if form.syntax == BARE_KEYS:
            return BareValues(self._texts, schema, self._quote(), form.end, lenient)
        if form.syntax == NESTED:
            return NestedValues(self._texts, schema, form.argument.partition("<$key>")[0], lenient)
        return Values(self._rules, schema, PYTHON if form.syntax == PYTHON_CALLS else JSON_IN_XML, lenient)

    def _pair(self, name: str, schema: Any, values: Values) -> str:
        if isinstance(values, BareValues):
            return values.pair(name, schema)
        if isinstance(values, NestedValues):
            return values.element(name, schema)
        if self._format.syntax == PYTHON_CALLS:
            return f"{quoted(name)} /=/ {values.of(schema)}"
        return self._element(name, schema, values)

    def _element(self, name: str, schema: Any, values: Values, key: str = "") -> str:
        """`key`: the rule of names that may stand in place of `$key`, if that is the `name`."""
        if "$type" in self._format.argument:
            parts = by_type(schema, values)
        else:
            each = [schema] if is_text(schema) else texts_of(schema, values) or [schema]
            parts = [("", part) for part in each]
        return " | ".join(self._typed(name, part, kind, values, key) for kind, part in parts)

    def _typed(self, name: str, schema: Any, kind: str, values: Values, key: str) -> str:
        """An element whose value is of one type, if that is written."""
        # A value whose type is a string stands there as it is, and any other one as JSON.
        as_text = is_text(schema)
        begin, end = self._around(name, as_text, kind)
        value = self._raw(schema, end, values) if as_text else f"{values.of(schema)} {self._literal(end)}"
        return f"{self._written(begin, {'key': [key]}) if key else self._literal(begin)} {value}"

    def _around(self, name: str, as_text: bool, kind: str = "string") -> tuple[str, str]:
        """What stands before and after the value of an argument, which needs no CDATA section."""
        begin, _, end = self._format.argument.partition("$value")
        begin, end = begin.removesuffix(_CDATA[0]), end.removeprefix(_CDATA[1])
        told = begin.replace("$text", "true" if as_text else "false").replace("$type", kind)
        key, spelled = ("$key|e", _escaped(name)) if "$key|e" in told else ("$key", name)
        return told.replace(key, spelled), end.replace(key, spelled)

    def _ends(self, end: str) -> set[str]:
        """What no text can have in it. `end`: what stands after the value."""
        if self._format.syntax == NESTED:
            return {end.partition("</")[0]}
        after_call = self._format.call.partition("$arguments")[2]
        return {end.removesuffix(LINE).strip(), *after_call.split(), self._format.end} - {""}

    def _raw(self, schema: Mapping[str, Any], end: str, values: Values) -> str:
        """A text as it is, and its end."""
        ends = self._ends(end)
        if "const" in schema or "enum" in schema:
            choices = texts_allowed(schema)
            if any(mark in each for mark in ends for each in choices):
                raise GrammarError("this model's format of calls cannot spell one of its values")
            return f"({' | '.join(f'{quoted(each)} {self._literal(end)}' for each in choices)})"
        values.check(schema, frozenset(("type", "minLength", "maxLength", "pattern", "format")))
        text = " & ".join(
            (*(f"/{each}/" for each in values.text(schema, "(?s:.)")), self._texts.without(ends))
        )
        if _CDATA[0] not in self._format.argument:
            return self._ended(text, end)
        plain = self._ended(f"{text} & /[^<&\\n]*/", end)
        section = self._ended(f"{text} & {self._texts.without(_CDATA)}", _CDATA[1] + end)
        return f"({plain} | {quoted(_CDATA[0])} {section})"

    def _ended(self, text: str, end: str) -> str:
        """A text and its end."""
        head, *rest = self._texts.literals(end)
        if head.startswith("<["):
            return " ".join((self._rules.add(text, terminal=True), head, *rest))
        # One terminal: where the text alone would end, none could tell.
        return " ".join((self._rules.add(f"({text}) {head}", terminal=True), *rest))

    def _literal(self, text: str) -> str:
        return " ".join(self._texts.literals(text))


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;")


def _is_python_name(name: str) -> bool:
    # Python's parser reads names of any script, each in the normal form of its letters.
    is_normal = unicodedata.is_normalized("NFKC", name)
    return is_normal and name.isidentifier() and not keyword.iskeyword(name)
