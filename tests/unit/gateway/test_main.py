"""How the gateway's process begins and ends."""

import asyncio
import resource
import socket
from typing import Any

import httpx
import pytest

from gateway import __main__ as main
from gateway.settings import GatewaySettings
from ops.launcher.redis_server import free_port
from ops.runtime.address import url_from_here
from ops.runtime.errors import StartError


class FakeNode:
    """A node of an empty deployment whose tokenizer is the test's."""

    def __init__(self, backend) -> None:
        self._backend = backend
        self.info: dict[str, object] = {}
        self.told = asyncio.Event()

    def channel(self, pool):
        assert pool == "m"
        return self._backend.channel

    async def leases(self):
        return await self._backend.leases()

    async def update(self, **info):
        self.info |= info
        self.told.set()


async def test_more_connections_than_a_process_begins_with(backend):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    node, port = FakeNode(backend), free_port()
    serving = asyncio.ensure_future(main.serve(node, GatewaySettings(port=port)))
    held: list[Any] = []
    try:
        await asyncio.wait_for(node.told.wait(), 10)
        held += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(300)))
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"http://127.0.0.1:{port}/health/live")).status_code == 200
    finally:
        for _, writer in held:
            writer.close()
        serving.cancel()
        await asyncio.wait([serving], timeout=10)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_taken_port_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"^port {port} is taken.*QUIRE_PORT"):
            await main.serve(None, GatewaySettings(port=port))


async def test_a_host_that_is_not_ours_is_one_line():
    with pytest.raises(StartError, match=r"^cannot listen on 203\.0\.113\.1:"):
        await main.serve(None, GatewaySettings(host="203.0.113.1", port=free_port()))


@pytest.mark.parametrize(
    ("host", "url", "reached"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}", "http://127.0.0.1:{}"),
        ("0.0.0.0", "http://0.0.0.0:{}", "http://127.0.0.1:{}"),
        ("::1", "http://[::1]:{}", "http://[::1]:{}"),
        ("::", "http://[::]:{}", "http://127.0.0.1:{}"),
        ("localhost", "http://localhost:{}", "http://localhost:{}"),
    ],
)
async def test_where_it_listens_and_is_reached(backend, host, url, reached):
    node, port = FakeNode(backend), free_port()
    serving = asyncio.ensure_future(main.serve(node, GatewaySettings(host=host, port=port)))
    told = asyncio.ensure_future(node.told.wait())
    await asyncio.wait([serving, told], timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if ":" in host and serving.done():
        pytest.skip("this machine has no IPv6")
    assert node.info == {"url": url.format(port)}
    here = url_from_here(host, port)
    assert here == reached.format(port)
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{here}/health/live")).status_code == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 10)


def test_a_bad_setting_is_named(monkeypatch, capsys):
    monkeypatch.setenv("QUIRE_PORT", "99999")
    with pytest.raises(SystemExit):
        GatewaySettings.from_environment()
    assert capsys.readouterr().err.startswith("QUIRE_PORT=99999: ")


@pytest.mark.parametrize("in_time", [True, False])
async def test_an_answer_under_way_may_finish_within_the_grace(backend, tokenizer, monkeypatch, in_time):
    stopped, asked = asyncio.Event(), asyncio.Event()
    tell = tokenizer.generate

    async def generate(request, context):
        asked.set()
        await (stopped if in_time else asyncio.Event()).wait()
        async for chunk in tell(request, context):
            yield chunk

    tokenizer.generate = generate
    monkeypatch.setattr(main, "GRACE_SECONDS", 10 if in_time else 0.1)
    node = FakeNode(backend)
    port = free_port()
    serving = asyncio.ensure_future(main.serve(node, GatewaySettings(port=port)))
    await asyncio.wait_for(node.told.wait(), 10)
    url = f"http://127.0.0.1:{port}"
    assert node.info == {"url": url}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
        ask = {"model": "m", "prompt": "A"}
        answer = asyncio.ensure_future(http.post("/v1/completions", json=ask))
        await asyncio.wait_for(asked.wait(), 10)
        serving.cancel()
        await asyncio.sleep(0)
        stopped.set()
        assert (await answer).status_code == (200 if in_time else 503)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 10)
    with socket.create_server(("127.0.0.1", port)):
        assert port, "the port is free again"
