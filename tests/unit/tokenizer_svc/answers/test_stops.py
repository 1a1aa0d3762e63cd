import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer_svc.answers.stops import StopMatcher, automaton

LETTERS = st.text(alphabet="ab", min_size=1, max_size=5)


def reference(text: str, stops: list[str]) -> tuple[str, str]:
    """The text before the stop string that is complete first (the longest of those), and that string."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, ""
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


@settings(max_examples=500)
@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(LETTERS, min_size=1, max_size=4),
    seed=st.integers(),
)
def test_as_searching_the_whole_text(text: str, stops: list[str], seed: int) -> None:
    pick, rest, matcher, delivered = random.Random(seed), text, StopMatcher(automaton(stops)), ""
    while rest and not matcher.found:
        size = pick.randint(1, 4)
        delivered += matcher.add(rest[:size])
        rest = rest[size:]
        so_far = text[: len(text) - len(rest)]
        # Nothing that may turn out to be a stop string has been delivered, and nothing else is held.
        longest = max((k for stop in stops for k in range(len(stop)) if so_far.endswith(stop[:k])), default=0)
        assert matcher.found or delivered == so_far[: len(so_far) - longest]
    if not matcher.found:
        delivered += matcher.finish()
    assert (delivered, matcher.found) == reference(text, stops)


def test_held_back_and_let_go() -> None:
    matcher = StopMatcher(automaton(["STOP"]))
    assert [matcher.add(part) for part in ("go S", "TO", "X", " S")] == ["go ", "", "STOX", " "]
    assert matcher.finish() == "S"


def test_across_chunks_and_nothing_after() -> None:
    matcher = StopMatcher(automaton(["\n\nUser:"]))
    assert [matcher.add(part) for part in ("fine.\n", "\nUs", "er: more")] == ["fine.", "", ""]
    assert matcher.found == "\n\nUser:"


def test_one_automaton_serves_many() -> None:
    root = automaton(["ab"])
    first, second = StopMatcher(root), StopMatcher(root)
    assert (first.add("a"), second.add("b"), first.add("b")) == ("", "b", "")
    assert (first.found, second.found) == ("ab", "")


def test_a_text_that_contains_its_stop_string() -> None:
    matcher = StopMatcher(automaton(["STOP"]), included=True)
    assert [matcher.add(part) for part in ("go ST", "OP and on")] == ["go ", "STOP"]
    assert matcher.found == "STOP"


def test_stop_strings_that_do_not_end_the_text_yet() -> None:
    matcher = StopMatcher(automaton(["ab", "bcd"]))
    assert matcher.add("xab", ends=False) == "x"
    assert (matcher.add("c", ends=False), matcher.found) == ("a", "")
    assert (matcher.add("de"), matcher.found) == ("", "bcd")
