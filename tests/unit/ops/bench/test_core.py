"""The core's benchmark measures what it says: all decode, all is found, all is given back."""

from itertools import pairwise

from ops.bench.core import BLOCK_SIZE, TABLE_BLOCKS, TABLES, Decoding, Sizes, measure

TINY = Sizes(decodes=(3, 5), prefix_tokens=640, pools=(1_000, 2_000), users=3, requests=6, repeats=20)


def test_every_sequence_decodes_in_every_step() -> None:
    decoding = Decoding(6, seed=1)
    starts = []
    for _ in range(BLOCK_SIZE + 1):
        plan, planned, completed = decoding.step()
        assert plan.rows.counts == (1,) * 6 == plan.rows.samples
        assert not plan.new_slots
        assert not plan.freed_slots
        assert planned > 0 < completed
        starts.append(plan.rows.starts)
    assert all(later == tuple(one + 1 for one in sooner) for sooner, later in pairwise(starts))


def test_a_quick_run() -> None:
    results = measure(TINY, seed=1)
    assert list(results["steps"]) == ["3", "5"]
    for step in results["steps"].values():
        for spread in step.values():
            assert 0 < spread["p10"] <= spread["p50"] <= spread["p90"]
    # A row is three int32 and a byte; the numbers of the step and of the blocks come on top.
    assert results["steps"]["5"]["message_bytes"]["p50"] > 5 * 13
    assert results["prefix"]["lookup_ms"]["p50"] >= results["prefix"]["naming_ms"]["p10"]
    for rates in results["blocks_per_second"].values():
        assert rates["empty"]["p50"] > rates["evicting"]["p50"] > TABLES * TABLE_BLOCKS
    kv = results["kv"]
    assert kv["held_tokens_mean"] > kv["used_tokens_mean"] > 0
    assert kv["wasted_share"] == round(1 - kv["used_tokens_mean"] / kv["held_tokens_mean"], 4)


def test_what_is_not_timed_does_not_depend_on_the_machine() -> None:
    once, again = measure(TINY, seed=2), measure(TINY, seed=2)
    assert once["kv"] == again["kv"]
    assert [step["message_bytes"] for step in once["steps"].values()] == [
        step["message_bytes"] for step in again["steps"].values()
    ]
