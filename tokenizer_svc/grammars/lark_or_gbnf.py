"""Grammars in Lark's notation or in GBNF, that of llama.cpp, as the library reads them."""

import re
from collections.abc import Mapping
from functools import partial

from llguidance.gbnf_to_lark import gbnf_to_lark

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.regex_reader import plain_digits

_LARK = re.compile(r"^\s*(%llguidance\b|!?\??start(\.-?\d+)?[ \t]*:(?!:=))", re.MULTILINE)
_PART = re.compile(
    r'(?:#|//)[^\n]*|"(?:\\.|[^"\\])*"|(?P<regex>/(?:\\.|[^/\\])+/)|(?P<token><[^<>\s\[\]]+>)', re.DOTALL
)
"""Comments, strings, regular expressions and names of tokens in Lark's notation: whichever begins first."""
_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def lark_of(text: str, special: Mapping[str, int]) -> str:
    r"""The grammar in Lark's notation. It begins with the rule `start`, and in GBNF with `root`.

    In Lark's regular expressions `\d` becomes 0 to 9. A token that is named, like `<|user|>`, stands by its
    number. `special`: those that can be. Raises `GrammarError` for another, and any exception for what is no
    GBNF.
    """
    if _LARK.search(text):
        return _PART.sub(partial(_read, special=special), text)
    return gbnf_to_lark(_ESCAPE.sub(_spelled, text))


def _read(part: re.Match[str], special: Mapping[str, int]) -> str:
    if part["regex"]:
        return plain_digits(part[0])
    if part["token"] is None:
        return part[0]
    if part[0] not in special:
        raise GrammarError(f"the model has no special token {part[0]}")
    return f"<[{special[part[0]]}]>"


def _spelled(escape: re.Match[str]) -> str:
    """An escape as the library's reader of GBNF takes it: it drops the zeros that the code begins with."""
    before, short, long = escape.groups()
    code = int(short or long, 16)
    if code < 0x80:
        return f"{before}\\x{code:02x}"
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        return escape[0]
    return before + chr(code)
