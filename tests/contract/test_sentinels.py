"""A real primary with a replica and three Sentinels: whoever is the primary, processes find it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.launcher.leases import Leases
from ops.runtime.health import RedisProblem, check
from proto.rpc import BusAway, RedisBus
from tests.contract.conftest import DEBIAN, LIMIT
from tests.contract.test_restarts import Conversations, served
from tests.support.sentinels import SECRET, Watched, running


@pytest.fixture(params=[None, *([Path(DEBIAN)] if DEBIAN else [])], ids=str)
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    yield from running(tmp_path, request.param)


@pytest.mark.parametrize("lives", [False, True], ids=["it is lost", "it becomes a replica"])
async def test_conversations_go_on_at_the_next_primary(
    watched: Watched, echo: Any, servicer: Any, until: Any, lives: bool
) -> None:
    url = watched.url()
    async with asyncio.timeout(2 * LIMIT), served(url, echo, servicer) as world:
        talks = Conversations(3, echo, world.stub, until)
        await talks.go_on()
        nodes = world.server, world.client
        epochs = [node.epoch for node in nodes]
        if lives:
            await asyncio.to_thread(watched.fail_over)
        else:
            watched.servers[0].kill()
            watched.sentinels[0].kill()  # as when both were on one machine
        await until(
            lambda: all(node.epoch > epoch for node, epoch in zip(nodes, epochs, strict=True)),
            "both have dropped their calls",
        )
        await talks.go_on()
        await talks.end()
        assert await asyncio.to_thread(watched.primary, watched.ports[1]) == watched.servers[1].port
        leases = Leases(url, world.bus.prefix)
        assert [one.service for one in await leases.holders()] == ["client", "server"]
        await leases.aclose()
        environment = {"QUIRE_REDIS_URL": url, "QUIRE_STREAM_PREFIX": world.bus.prefix}
        assert await asyncio.to_thread(check, "server", environment) == os.getpid()


async def test_what_is_wrong_is_said_of_each_sentinel(watched: Watched) -> None:
    url = watched.url()
    for wrong, told, briefly in (
        (url.replace("/quire-primary/", "/other/"), "(.*knows no 'other'){3}", "knows 'other'"),
        (url.replace(f"={SECRET}", "=wrong"), "(.*WRONGPASS){3}", "WRONGPASS"),
        (watched.url([1, 2]), ":1 is unreachable: .*:2 is unreachable: ", "refused"),
    ):
        with pytest.raises(BusAway, match=told):
            await RedisBus(wrong).connect("client-1")
        with pytest.raises(RedisProblem, match=briefly):
            await asyncio.to_thread(check, "client", {"QUIRE_REDIS_URL": wrong})
