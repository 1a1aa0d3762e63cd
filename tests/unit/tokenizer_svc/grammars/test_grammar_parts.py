"""Parts that become one terminal, and where the end of one is clear."""

import pytest

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.grammar_parts import DIGITS, Part, PartRules, any_text, constant, plain
from tokenizer_svc.grammars.grammar_rules import GrammarRules
from tokenizer_svc.grammars.regex_reader import first_characters

OBJECT = Part('%json {"type": "object"}', first=frozenset(('%json {"type": "object"}',)))
LETTERS = plain("/[a-z]*/", empty=True)


@pytest.fixture
def parts() -> PartRules:
    return PartRules(GrammarRules())


def test_what_is_regular_and_next_to_each_other_is_one_part(parts: PartRules) -> None:
    found = parts.joined(*constant("a"), *constant("b"), LETTERS, OBJECT, *constant("c"))
    assert [part.plain for part in found] == [True, False, True]
    assert parts.joined(*constant("a"), *constant("b")) == constant("ab")
    assert parts.joined(*constant(""), OBJECT) == (OBJECT,)


def test_what_is_beside_alternatives_goes_into_each_where_its_end_would_not_be_clear(
    parts: PartRules,
) -> None:
    (choice,) = parts.either((OBJECT,), (any_text(),))
    (joined,) = parts.joined(choice, *constant("</a>"))
    assert [way[-1].text for way in joined.ways] == ['"</a>"', '(/(?s:.*)/ "</a>")']
    assert len(parts.joined(*constant("<a>"), choice)) == 2, "the end of a constant is clear"


def clear(parts: PartRules, *each: Part) -> bool:
    try:
        parts.whole(each)
    except GrammarError:
        return False
    return True


def test_an_end_is_clear_where_a_text_does_not_go_on_with_what_follows(parts: PartRules) -> None:
    assert clear(parts, LETTERS, OBJECT)
    assert not clear(parts, any_text(), OBJECT)
    assert clear(parts, any_text(["{"]), OBJECT)
    assert not clear(parts, plain("/[a-z]*[{]?/"), OBJECT)
    assert clear(parts, plain("/[a-z]*[{]/"), Part("r", first=frozenset(('"1"',))))
    assert not clear(parts, plain("/[a-z]*[{]?/"), Part("r", empty=True, first=frozenset(('"1"',))), OBJECT)
    assert clear(parts, any_text(), Part("<[7]>")), "no text matches a special token"
    assert not clear(parts, plain("/[ä-ü]*/"), Part("r", first=frozenset(('"ö"',))))


def test_a_number_may_take_digits_unless_some_must_follow(parts: PartRules) -> None:
    number = Part("r", last=frozenset((DIGITS,)))
    assert clear(parts, number, Part("r", first=frozenset(("/(?s:.)/",))))
    assert not clear(parts, number, Part("r", first=frozenset(("/[5-7]/",))))


@pytest.mark.parametrize(
    ("marks", "ended", "text"),
    [
        (["</a>"], True, "x</a>"),
        (["aa"], True, "xaa"),
        (["a", "ab"], False, "xab"),
        (["ab", "ba"], True, "xab"),
    ],
)
def test_a_text_up_to_the_first_mark(parts: PartRules, marks: list[str], ended: bool, text: str) -> None:
    (found,) = parts.joined(any_text(marks), *parts.either(*map(constant, marks)))
    assert bool(found.last) is not ended
    assert first_characters(f'start: T\nT: {found.text} & "{text}"')
    if ended:
        assert not first_characters(f"start: T\nT: {found.text} & ({found.text} /(?s:.+)/)")


def test_repeated_parts(parts: PartRules) -> None:
    assert parts.repeated((OBJECT,), 0, 0) == ()
    assert parts.repeated(constant("a"), 2, 3)[0].text == '("a"){2,3}'
    with pytest.raises(GrammarError):
        parts.repeated((any_text(), Part("<[1]>"), LETTERS), 0, None)
