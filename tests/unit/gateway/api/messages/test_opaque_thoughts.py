"""Thoughts that clients send back unread."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.messages.opaque_thoughts import opaque, thought_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS)
def test_what_a_text_stands_for(thought: str) -> None:
    text = opaque(thought)
    assert text.isascii()
    assert thought_of(text) == thought
    assert len(thought) < 2 or thought not in text


FOX = opaque("A fox ❄")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gAAAAABo",
        base64.b64encode(b"A fox").decode(),
        FOX.removeprefix("quire:"),
        FOX[:-1],
        FOX[:7] + "!" + FOX[8:],
        FOX[:-4] + "4p2=",
        FOX + "❄",
    ],
)
def test_what_is_foreign_or_damaged_says_nothing(text: str) -> None:
    assert thought_of(text) == ""
