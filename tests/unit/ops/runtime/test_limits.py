"""Limits as text, and those of a key in the place of those of the deployment."""

import pytest

from ops.runtime.limits import Limits, LimitsError


def test_a_text_and_back() -> None:
    text = "concurrency=4 priority=-2:10 requests_per_minute=60 seconds=90.5 sequences=8"
    limits = Limits.parse(text)
    assert (limits.concurrency, limits.priority, limits.seconds, limits.sequences) == (4, (-2, 10), 90.5, 8)
    assert str(limits) == text
    assert Limits.parse("") == Limits()
    assert not str(Limits())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("requests=3", "there is no limit 'requests'; there are sequences, "),
        ("concurrency", "must be name=value"),
        ("concurrency=1 concurrency=2", "each name once"),
        ("concurrency=many", "concurrency: "),
        ("concurrency=-1", "concurrency: "),
        ("sequences=0", "sequences: "),
        ("sequences=129", "sequences: "),
        ("answer_tokens=0", "answer_tokens: "),
        ("priority=3", "priority: "),
        ("priority=3:1", "priority: the lowest first"),
        ("seconds=nan", "seconds: "),
    ],
)
def test_a_wrong_text_is_named(text: str, said: str) -> None:
    with pytest.raises(LimitsError) as error:
        Limits.parse(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_s_limits_replace_those_of_the_deployment_one_by_one() -> None:
    deployment = Limits.parse("concurrency=4 requests_per_minute=60")
    key = Limits.parse("concurrency=0 answer_tokens=100")
    both = deployment.replaced_by(key)
    assert (both.concurrency, both.requests_per_minute, both.answer_tokens) == (0, 60, 100)
    assert both.sequences == Limits().sequences


def test_only_limits_on_all_requests_together_are_counted() -> None:
    assert not Limits.parse("sequences=3 seconds=5").counted
    assert Limits.parse("concurrency=1").counted
    assert Limits.parse("tokens_per_minute=1").counted
