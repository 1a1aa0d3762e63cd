"""A line of the system prompt that each request has anew."""

import pytest

from gateway.api.anthropic.volatile import put_last, without_volatile

LINE = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;"


@pytest.mark.parametrize(
    ("texts", "kept", "line"),
    [
        ([], "", ""),
        (["Be brief."], "Be brief.", ""),
        ([LINE, "Be", " brief."], "Be brief.", LINE),
        ([f"{LINE}\nBe brief."], "Be brief.", LINE),
        (["Be brief. ", LINE], "Be brief. ", LINE),
        ([LINE], "", LINE),
        ([f"A text about {LINE}"], f"A text about {LINE}", ""),
    ],
)
def test_the_line_is_taken_out(texts, kept, line):
    assert without_volatile(texts) == (kept, line)


def test_prompts_of_two_requests_are_equal_without_it():
    first, second = (without_volatile([f"{LINE}{check}", "Be brief."])[0] for check in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("roles", "line", "ends"),
    [
        (["user"], LINE, [True]),
        (["user", "assistant", "tool"], LINE, [False, False, True]),
        (["user", "assistant"], LINE, [True, False]),
        (["assistant"], LINE, [False]),
        (["user"], "", [False]),
    ],
)
def test_the_line_comes_last(roles, line, ends):
    messages = [{"role": role, "content": "A fox"} for role in roles]
    put_last(messages, line)
    assert [one["content"] for one in messages] == [f"A fox\n{LINE}" if end else "A fox" for end in ends]
