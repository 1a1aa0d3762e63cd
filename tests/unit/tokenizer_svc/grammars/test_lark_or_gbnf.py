"""Grammars in Lark's notation and in GBNF: which is which, and characters that GBNF spells by their codes."""

import pytest

from ops.model_directory.grammars import GrammarError, Vocabulary
from tests.unit.tokenizer_svc.grammars.test_grammar_text import TOKENIZER, vocabulary
from tokenizer_svc.grammars.grammar_text import grammar_text
from tokenizer_svc.grammars.lark_or_gbnf import lark_of
from tokenizer_svc.grammars.regex_reader import read_regex

__all__ = ["vocabulary"]


def takes(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    matcher = vocabulary.matcher(grammar_text("grammar", grammar))
    tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize("start", ["start:", "?start:", "!start :", "%llguidance {}\n\n  !?start:"])
def test_lark_begins_with_start(vocabulary: Vocabulary, start: str) -> None:
    grammar = f'{start} a\na: "x"'
    assert lark_of(grammar, {}) == grammar
    assert takes(vocabulary, grammar, "x")


def test_a_priority_of_the_start_is_refused_as_one(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError, match="priority"):
        vocabulary.matcher(grammar_text("grammar", 'start.2: "x"'))


def test_a_rule_of_gbnf_is_not_called_start() -> None:
    with pytest.raises(GrammarError, match="'start' already exists"):
        grammar_text("grammar", 'root ::= start "!"\nstart ::= "x"')


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (r'root ::= "\u00e9\u0022\u000A\u005C"', 'é"\n\\', "é"),
        (r'root ::= "\U0001F600"', "😀", "a"),
        (r"root ::= [\u0400-\u04FF]+", "дом", "dom"),
        (r"root ::= [\u005D\u002D\u005B\u005E\u0041]+", "A^]-[", "B"),
        (r"root ::= [^\u0000-\u007F]+", "é", "e"),
        (r'root ::= "\\u00e9"', r"\u00e9", "é"),
        (r'root ::= "\\\u00e9"', "\\é", "é"),
        (r'root ::= "\x41\n"', "A\n", "A"),
    ],
)
def test_codes_of_characters_in_gbnf(vocabulary: Vocabulary, grammar: str, good: str, bad: str) -> None:
    assert takes(vocabulary, grammar, good)
    assert not takes(vocabulary, grammar, bad)


@pytest.mark.parametrize(
    ("regex", "good", "bad"),
    [
        (r"\d\D", ["7a", "7٣"], ["٣a", "77"]),
        (r"[\d.]+", ["1.5", "."], ["٣.٥", "d"]),
        (r"[^\d]", ["a", "٣"], ["7"]),
        (r"[^\D5]", ["7"], ["5", "a", "٣"]),
        (r"[a\D-]", ["a", "-", "٣"], ["7"]),
        (r"\\d", [r"\d"], ["7", r"\7"]),
        (r"(?i:\d)\/\w", ["7/é"], ["٣/é"]),
        (r"\d-\d[-\d]", ["1-2-", "1-23"], ["1-٣-"]),
        (r"[\w--\d]", ["a"], ["7"]),
        (r"[]\d][^]\d]", ["]a", "7a"], ["a]", "77"]),
    ],
)
def test_a_digit_is_one_from_0_to_9(
    vocabulary: Vocabulary, regex: str, good: list[str], bad: list[str]
) -> None:
    tried = grammar_text("regex", regex), grammar_text("grammar", f"start: A # /\nA: /{regex}/ // /")
    for grammar in tried:
        for text in (*good, *bad):
            matcher = vocabulary.matcher(grammar)
            tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
            whole = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
            assert whole is (text in good), text


def test_what_is_no_regular_expression_stays_refused(vocabulary: Vocabulary) -> None:
    for regex in (r"[+-\d]+", r"[\w-\d]", r"\d\d)abc"):
        with pytest.raises(GrammarError):
            vocabulary.matcher(grammar_text("regex", regex))
    for regex in (r"\d\d)abc", r"x\d)", r"\d|x)y"):
        with pytest.raises(GrammarError, match="unopened"):
            read_regex(regex)


def test_only_regular_expressions_of_a_grammar_are_changed() -> None:
    grammar = 'start: a /x\\d/ "/" b # /\\d/\na: "\\"/\\d/"\nb: %json {"pattern": "/\\d/"} // /\\d/\n'
    assert lark_of(grammar, {}) == grammar.replace("x\\d", "x[0-9]")


@pytest.mark.parametrize("code", [r"\uD83D", r"\U00110000"])
def test_codes_of_no_character_are_refused(vocabulary: Vocabulary, code: str) -> None:
    with pytest.raises(GrammarError):
        vocabulary.matcher(grammar_text("grammar", f'root ::= "{code}"'))


def test_tokens_stand_by_their_numbers() -> None:
    grammar = 'start: <think> A "<think>" // <think>\nA: /<think>|<b>/ | <[7]>'
    assert lark_of(grammar, {"<think>": 5}) == grammar.replace("<think> A", "<[5]> A")
    with pytest.raises(GrammarError, match="no special token <thought>"):
        lark_of("start: <thought>", {"<think>": 5})
