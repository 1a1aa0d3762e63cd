"""Grammars of a worker: sent once, waited for by nobody else, kept for a while, and dropped."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core import grammars
from scheduler_svc.core.grammars import NewGrammar
from scheduler_svc.core.suspicion import Loss

MakeBench = Callable[..., Any]


def test_only_what_is_sampled_waits_for_the_compiler(bench: MakeBench) -> None:
    one = bench()
    free = one.arrive([1] * 3, max_tokens=40)
    one.step()
    asked = one.arrive([2] * 9, max_tokens=2, grammar=b"g")
    first = one.step()
    assert first.new_grammars == (NewGrammar(1, b"g"),)
    assert [new.grammar for new in first.new_slots] == [1]
    assert (first.rows.counts, first.rows.samples) == ((1, 8), (1, 0)), "all but the last token of the prompt"
    for _ in range(5):
        assert one.step().rows.samples == (1,), "others go on"
    assert asked.sequences[0].output_tokens == 0
    one.compile()
    assert one.step().rows.counts == (1, 1)
    one.run()
    assert not asked.unfinished
    assert not free.unfinished


def test_a_plan_without_rows_brings_what_has_nothing_to_compute_yet(bench: MakeBench) -> None:
    """A prompt of one token, or of which all but the last token is cached."""
    one = bench()
    asked = one.arrive([1], max_tokens=2, grammar=b"g")
    plan = one.step()
    assert (plan.rows.slots, len(plan.new_slots), len(plan.new_grammars)) == ((), 1, 1)
    assert one.scheduler.plan() is None, "the scheduler waits for the worker"
    one.compile()
    assert one.step().rows.counts == (1,)
    one.run()
    assert not asked.unfinished


def test_a_grammar_that_has_been_compiled_is_sent_and_waited_for_once(bench: MakeBench) -> None:
    one = bench()
    one.arrive([1] * 3, max_tokens=2, grammar=b"g", n=2)
    one.run()
    one.arrive([2] * 3, max_tokens=2, grammar=b"g")
    plan = one.step()
    assert (plan.new_grammars, plan.new_slots[0].grammar, plan.rows.samples) == ((), 1, (1,))


def test_what_is_not_used_is_dropped_in_the_end(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MOST_IDLE", 2)
    one = bench()
    used = one.arrive([1] * 3, max_tokens=40, grammar=b"used")
    one.step()
    dropped = []
    for number in range(4):
        one.arrive([number] * 5, max_tokens=1, grammar=b"%d" % number)
        dropped.append(one.step().dropped_grammars)
        one.compile()
        one.step()
    assert dropped == [(), (), (), (2,)], "the one that was used least recently"
    one.arrive([9] * 5, max_tokens=1, grammar=b"0")
    plan = one.step()
    assert plan.new_grammars == (NewGrammar(6, b"0"),)
    one.scheduler.compiled(2)
    assert one.step().rows.samples == (1,), "what is said of one that was dropped says nothing of another"
    one.scheduler.cancel(used)
    assert sorted(one.worker.grammars) == [1, 4, 5, 6]


def test_who_waits_for_the_compiler_may_be_why_the_worker_is_lost(bench: MakeBench) -> None:
    one = bench()
    free = one.arrive([1] * 3, max_tokens=40)
    asked = one.arrive([2] * 9, max_tokens=2, grammar=b"g")
    one.step()
    one.plan()
    assert one.scheduler.suspects(Loss.DEATH) == {free: {0: (3, 4)}, asked: {0: (8, 9)}}
    one.compile()
    assert one.scheduler.suspects(Loss.DEATH) == {free: {0: (3, 4)}}
