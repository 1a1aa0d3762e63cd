"""The books, against sums done by hand."""

from array import array

import pytest

from ops.simulate.cost import SECOND
from ops.simulate.ledger import Ledger, LiveRequest
from ops.simulate.trace import Arrival
from scheduler_svc.core.errors import IntegrityError


def test_tokens_are_booked_one_by_one_and_many_at_once() -> None:
    lives = [
        LiveRequest(at, Arrival(0, 5, 4, tenant="me", priority=at, timeout=8.5), array("i", [1] * 5), (), 4)
        for at in (0, SECOND)
    ]
    one_by_one, at_once = Ledger(2, 10), Ledger(2, 10)
    times = [2 * SECOND, 3 * SECOND, 5 * SECOND]
    for ledger in (one_by_one, at_once):
        for live in lives:
            live.latest, live.missing = 0, 4
            ledger.ask(live)
        if ledger is at_once:
            ledger.tokens(lives, times)
        else:
            for now in times:
                for live in lives:
                    ledger.token(live, now)
        with pytest.raises(IntegrityError, match="misses 1"):
            ledger.end(lives[0], 0, times[-1])
        for live in lives:
            ledger.token(live, 9 * SECOND)
            ledger.end(live, 2, 9 * SECOND)
    found = at_once.summary()
    assert found == one_by_one.summary()
    assert found["first_token_ms"] == {"p50": 1000, "p90": 2000, "p99": 2000}
    assert found["urgent_first_token_ms"] == {"p50": 2000, "p90": 2000, "p99": 2000}
    assert found["in_time_share"] == 0.5
    assert found["between_tokens_ms"] == {"p50": 2000, "p90": 4000, "p99": 4000}
    assert found["end_to_end_ms"] == {"p50": 8000, "p90": 9000, "p99": 9000}
    assert (found["output_rate"], found["cached_share"]) == (round(8 / 9, 3), 0.4)
