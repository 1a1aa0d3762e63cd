"""A dozen faults of every kind, two at once among them, under streams: the short form of `make chaos`.

What dies, stops, is cut off or full is one of two of every service behind the gateway, the gateway or Redis
(`ops/bench/robust/faults.py`). No answer is lost, none differs by a byte, and nothing is left behind.
"""

from pathlib import Path

import pytest

from ops.bench.robust import chaos
from ops.bench.robust.chaos import told
from ops.bench.robust.rig import Rig

FAULTS = 12
USERS = 12
LEASE_SECONDS = 1.0


@pytest.mark.timeout(400)
async def test_no_answer_depends_on_what_fails(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LEASE_SECONDS)
    async with rig.running():
        outcome = await chaos.survive(rig, FAULTS, seed=2, users=USERS, say=print)
    results = told(outcome, rig, USERS)
    assert results["faults"] == FAULTS
    assert outcome.tally.identical >= USERS
    assert outcome.faultless, results
