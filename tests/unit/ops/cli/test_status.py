"""What `quire status` shows of processes."""

import pytest

from ops.cli.status import _row, _whole
from proto.rpc import Lease

SERVICES = ("gateway", "tokenizer", "scheduler", "worker")


def test_what_the_lease_says_is_shown_and_what_it_no_longer_says_is_not() -> None:
    info = {"model": "tiny", "memory": "38 GB/s", "slow": "", "waiting": 0}
    row = _row(Lease("worker-1", "worker", 2, info, pid=7, protocol=3))
    assert row == ("worker", "worker-1", "7", "2", "3", "model=tiny memory=38 GB/s waiting=0")


@pytest.mark.parametrize(
    ("protocols", "whole"),
    [((1, 1, 1, 1), True), ((2, 2, 2, 2), True), ((1, 1, 2, 2), False), ((1, 1, 1, 2), False)],
)
def test_processes_of_two_protocols_make_no_deployment(protocols: tuple[int, ...], whole: bool) -> None:
    holders = [
        Lease(f"{service}-{protocol}", service, 1, protocol=protocol)
        for service, protocol in zip(SERVICES, protocols, strict=True)
    ]
    assert _whole(holders) is whole
