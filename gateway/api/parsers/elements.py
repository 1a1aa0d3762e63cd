"""Calls whose arguments are elements, as in XML: the regular expressions of one format."""

import re
from functools import lru_cache
from typing import NamedTuple

_PARTS = re.compile(
    r'(?P<told>\s[\w-]+="\$text")|(?P<type>\s[\w-]+="\$type")|(?P<data><!\[CDATA\[\$value]]>)'
    r'|(?P<lines>\n\$value\n)|(?P<value>\$value)|(?P<quoted>"\$(?P<attribute>\w+)(?:\|e)?")'
    r'|(?P<body>\$arguments)|\$(?P<word>\w+)|(?P<space>\s+)|[^$\s"<]+|.'
)
_VALUE = "(?P<value>.*?)"


class Elements(NamedTuple):
    """How calls are found in a text, and arguments in a call."""

    call: re.Pattern[str]
    """Its groups are `name`, and `body`: all arguments."""
    call_end: str
    """What ends a call; empty: the end of the text does."""
    argument: re.Pattern[str]
    """Its groups are `key`, `value` or `data`, and `told`: `true` of a value that is a text as it stands; or
    `type`: that of the value in JSON Schema."""
    argument_end: str
    escaped: bool
    """In names `&` and `"` are `&amp;` and `&quot;`."""

    def named(self, text: str) -> str:
        """A name that stands there as `text`."""
        name = text.strip()
        return name.replace("&quot;", '"').replace("&amp;", "&") if self.escaped else name


@lru_cache(maxsize=64)
def elements_of(call: str, argument: str) -> Elements:
    """Those of `call_text` and `argument_text` of an `AnswerFormat`."""
    call, argument = call.strip(), argument.strip()
    end = call.partition("$arguments")[2].strip()
    return Elements(
        re.compile(_pattern(call) + ("" if end else r"\Z"), re.DOTALL),
        end,
        re.compile(_pattern(argument), re.DOTALL),
        re.split(r"\$value(?:]]>)?", argument)[-1].strip(),
        '|e"' in call,
    )


@lru_cache(maxsize=64)
def together(arguments: str) -> re.Pattern[str]:
    """That of `arguments_text` of an `AnswerFormat`. Its group `body` is the JSON."""
    return re.compile(_pattern(arguments), re.DOTALL)


def _pattern(text: str) -> str:
    return "".join(map(_part, _PARTS.finditer(text)))


def _part(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "told":
            attribute = re.escape(found["told"].strip().partition("=")[0])
            return rf'(?:\s+{attribute}="(?P<told>true|false)")?'
        case "type":
            attribute = re.escape(found["type"].strip().partition("=")[0])
            return rf'(?:\s+{attribute}="(?P<type>\w+)")?'
        case "data":
            return rf"(?:\s*<!\[CDATA\[(?P<data>(?:(?!<!\[CDATA\[).)*?)]]>\s*|{_VALUE})"
        case "lines":
            return rf"\n?{_VALUE}\n?"
        case "value":
            return _VALUE
        case "quoted":
            return rf'"(?P<{found["attribute"]}>[^<>"\n]+)"'
        case "body":
            return "(?P<body>.*?)"
        case "word":
            return rf"(?P<{found['word']}>[^<>\n]+)"
        case "space":
            return r"\s*"
    return re.escape(found[0])
