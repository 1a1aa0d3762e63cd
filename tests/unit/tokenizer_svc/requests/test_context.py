"""The longest sequence of a model, as its schedulers announce it."""

import pytest

from proto.rpc import Lease
from tokenizer_svc.requests.context import REFRESH_SECONDS, AnnouncedContext


def scheduler(model="m", **info) -> Lease:
    return Lease("scheduler-1", "scheduler", 1, {"model": model, **info})


class Deployment:
    def __init__(self, *leases: Lease) -> None:
        self.list, self.looks, self.now = list(leases), 0, 0.0
        self.error: Exception | None = None
        self.context = AnnouncedContext(self.leases, "m", lambda: self.now)

    async def leases(self) -> list[Lease]:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.list


OTHERS = [
    Lease("worker-1", "worker", 1, {"model": "m", "max_model_len": 9}),
    scheduler("other", max_model_len=8),
]


@pytest.mark.parametrize(
    ("leases", "tokens"),
    [
        ([scheduler(max_model_len=100)], 100),
        ([scheduler(max_model_len=100), scheduler(max_model_len=300)], 300),
        ([scheduler(max_model_len=100), scheduler(max_model_len=0)], 0),
        ([scheduler(max_model_len=100), scheduler()], 0),
        ([], 0),
    ],
)
async def test_what_is_announced(leases, tokens):
    assert await Deployment(*leases, *OTHERS).context() == tokens


async def test_leases_are_read_now_and_then():
    deployment = Deployment(scheduler(max_model_len=100))
    for _ in range(10):
        assert await deployment.context() == 100
    assert deployment.looks == 1
    deployment.list, deployment.now = [scheduler(max_model_len=200)], REFRESH_SECONDS
    assert await deployment.context() == 200


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError])
async def test_leases_that_cannot_be_read_refuse_nobody(error):
    deployment = Deployment(scheduler(max_model_len=100))
    deployment.error = error()
    assert await deployment.context() == 0
