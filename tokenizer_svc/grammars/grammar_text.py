"""From what a client asks of an answer's text to a grammar as the library llguidance writes it down."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llguidance import LLMatcher

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.call_grammar import WHITESPACE, call_grammar
from tokenizer_svc.grammars.call_rules import CallRules
from tokenizer_svc.grammars.grammar_rules import quoted
from tokenizer_svc.grammars.lark_or_gbnf import lark_of
from tokenizer_svc.grammars.regex_reader import plain_digits
from tokenizer_svc.grammars.schema_closed import closed
from tokenizer_svc.grammars.schema_limits import followed
from tokenizer_svc.grammars.structural_tags import structural_grammar

NO_TOKENS: Mapping[str, int] = MappingProxyType({})


def grammar_text(
    kind: str,
    text: str,
    lenient: bool = False,
    special: Mapping[str, int] = NO_TOKENS,
    compact: bool = False,
) -> str:
    """The grammar of a `Shape`; `kind` is the name of its field. The text of `calls` is that of `CallRules`.
    Of `any` there is none. `special`: tokens of the vocabulary that a grammar may name. `compact`: JSON by a
    schema has no white space between its parts.

    To be called in `grammar_main.py` alone: a pattern may take any time. Raises `GrammarError` and
    `MemoryError`.
    """
    try:
        return _text(kind, text, lenient, special, compact)
    except (GrammarError, MemoryError):
        raise
    except Exception as error:  # the library's readers raise what comes up
        raise GrammarError(str(error) or type(error).__name__) from error


def _text(kind: str, text: str, lenient: bool, special: Mapping[str, int], compact: bool) -> str:
    match kind:
        case "json_schema":
            options: Any = {"whitespace_pattern": "" if compact else WHITESPACE, "lenient": lenient}
            schema = json.dumps(followed(closed(json.loads(text)), lenient))
            return LLMatcher.grammar_from_json_schema(schema, options)
        case "regex":
            return LLMatcher.grammar_from_regex(plain_digits(text))
        case "choice":
            choices = json.loads(text)
            if not choices:
                raise GrammarError("there is nothing to choose from")
            # A terminal of thousands is followed byte by byte, a rule's alternatives are all held at once.
            return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(map(quoted, choices)))
        case "grammar":
            return LLMatcher.grammar_from_lark(lark_of(text, special))
        case "structural_tag":
            return LLMatcher.grammar_from_lark(structural_grammar(text, special))
        case "any":
            return ""
        case "calls":
            return LLMatcher.grammar_from_lark(call_grammar(CallRules.read(text)))
    raise GrammarError(f"{kind} is not a kind of grammar")
