"""What a context keeps of a text: the rule."""

from array import array

import pytest

from scheduler_svc.core.rolling import dropped, kept, prompt_in


@pytest.mark.parametrize("context", [16, 17, 31, 64])
@pytest.mark.parametrize("prompt", [1, 3, 4, 15])
def test_the_rule_is_what_a_text_does_token_by_token(context: int, prompt: int) -> None:
    in_context = list(range(prompt))  # places in the text
    for length in range(prompt, 300):
        if len(in_context) == context:
            in_context = in_context[:4] + in_context[-(context // 2 - 4) :]
        count = dropped(length, context)
        assert list(kept(array("i", range(length)), count)) == in_context
        assert len(in_context) + count == length
        assert prompt_in(prompt, count) == sum(place < prompt for place in in_context)
        in_context.append(length)
