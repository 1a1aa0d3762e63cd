"""What results mean: confirmed tokens, named blocks, failed rows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler_svc.core.errors import RequestRefused, RowFailed

MakeBench = Callable[..., Any]


def test_only_confirmed_tokens_are_cached(bench: MakeBench) -> None:
    one = bench()
    one.arrive([1] * 8, max_tokens=9)
    one.plan()
    same = one.arrive([1] * 8, max_tokens=9)
    assert one.plan().rows.counts == (1,)  # the same prompt waits until it is known to have been computed
    assert same.cached_tokens is None
    assert one.scheduler.state.batch.pool.cached_blocks == 0


def test_a_row_error_ends_its_request_alone(bench: MakeBench) -> None:
    one = bench()
    good = one.arrive([1], max_tokens=3)
    bad = one.arrive([one.fake.POISON, 2], n=2, max_tokens=3)
    outcome = one.complete(one.plan())
    ((failed, error),) = outcome.failed
    assert failed is bad
    assert isinstance(error, RowFailed)
    assert [gain.group for gain in outcome.gains] == [good]
    one.run()
    assert list(good.sequences[0].tokens[1:]) == one.fake.reference(good.request, 0, 64)


def test_a_grammar_that_goes_no_further_is_refused(bench: MakeBench) -> None:
    one = bench()
    bad = one.arrive([one.fake.POISON, 2], max_tokens=3)
    result = replace(one.worker.execute(one.plan()), at_limits=[0])
    ((failed, error),) = one.scheduler.complete(result).failed
    assert failed is bad
    assert isinstance(error, RequestRefused)
    assert error.param == "grammar"
