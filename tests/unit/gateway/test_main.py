"""How the gateway's process begins and ends."""

import asyncio
import resource
import socket
from typing import Any

import httpx
import pytest

from gateway import __main__ as main
from gateway.settings import GatewaySettings
from gateway.upstream.generator import Generator
from ops.launcher.redis_server import free_port
from ops.runtime.address import url_from_here
from ops.runtime.errors import StartError, TransientStartError
from proto.rpc import Lease


@pytest.fixture(autouse=True)
def keys_in_redis(redis_url, monkeypatch):
    """A gateway reads its API keys before it listens."""
    monkeypatch.setenv("QUIRE_REDIS_URL", redis_url)


class FakeNode:
    """A node of an empty deployment whose tokenizer is the test's."""

    def __init__(self, backend) -> None:
        self.id = "gateway-1"
        self._backend = backend
        self.info: dict[str, object] = {}
        self.told = asyncio.Event()

    def channel(self, pool):
        assert pool == "m"
        return self._backend.channel

    async def leases(self, any_protocol=False):
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
        await asyncio.wait_for(node.told.wait(), 60)
        held += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(300)))
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"http://127.0.0.1:{port}/health/live")).status_code == 200
    finally:
        for _, writer in held:
            writer.close()
        serving.cancel()
        await asyncio.wait([serving], timeout=60)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_too_few_open_files_for_any_connection_is_one_line(backend, monkeypatch):
    monkeypatch.setattr(main.resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(StartError, match=f"^256 files may be open.*opens up to {main.OTHER_FILES}"):
        await main.serve(FakeNode(backend), GatewaySettings(port=free_port()))


async def test_a_taken_port_is_one_line(backend):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransientStartError, match=f"^port {port} is taken.*QUIRE_PORT"):
            await main.serve(FakeNode(backend), GatewaySettings(port=port))


async def test_a_host_that_is_not_ours_is_one_line():
    with pytest.raises(TransientStartError, match=r"^cannot listen on 203\.0\.113\.1:"):
        await main.serve(None, GatewaySettings(host="203.0.113.1", port=free_port(), open_to_all=True))


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
    serving = asyncio.ensure_future(main.serve(node, GatewaySettings(host=host, port=port, open_to_all=True)))
    told = asyncio.ensure_future(node.told.wait())
    await asyncio.wait([serving, told], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    if ":" in host and serving.done():
        pytest.skip("this machine has no IPv6")
    assert node.info == {"url": url.format(port)}
    here = url_from_here(host, port)
    assert here == reached.format(port)
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{here}/health/live")).status_code == 200
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 60)


def test_a_bad_setting_is_named(monkeypatch, capsys):
    monkeypatch.setenv("QUIRE_PORT", "99999")
    with pytest.raises(SystemExit):
        GatewaySettings.from_environment()
    assert capsys.readouterr().err.startswith("QUIRE_PORT=99999: ")


class Held:
    """Holds the tokenizer's answers back."""

    def __init__(self, tokenizer) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self._tell = tokenizer.generate
        tokenizer.generate = self._generate

    async def _generate(self, request, context):
        self.asked.set()
        await self.go_on.wait()
        async for chunk in self._tell(request, context):
            yield chunk


ASK = {"model": "m", "prompt": "A"}


async def started(node, port, **settings):
    serving = asyncio.ensure_future(main.serve(node, GatewaySettings(port=port, **settings)))
    await asyncio.wait_for(node.told.wait(), 60)
    assert node.info == {"url": f"http://127.0.0.1:{port}"}
    return serving


def client_of(port):
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60)


@pytest.mark.parametrize("in_time", [True, False])
async def test_an_answer_under_way_may_finish_within_the_grace(backend, tokenizer, in_time):
    held, node, port = Held(tokenizer), FakeNode(backend), free_port()
    serving = await started(node, port, stop_seconds=60 if in_time else 0.1)
    async with client_of(port) as http:
        answer = asyncio.ensure_future(http.post("/v1/completions", json=ASK))
        await asyncio.wait_for(held.asked.wait(), 60)
        serving.cancel()
        if in_time:
            await asyncio.sleep(0)
            held.go_on.set()
        assert (await answer).status_code == (200 if in_time else 503)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 60)
    with socket.create_server(("127.0.0.1", port)):
        assert port, "the port is free again"


async def test_a_stream_that_outlives_the_grace_ends_with_an_error_event(backend, tokenizer):
    held, node, port = Held(tokenizer), FakeNode(backend), free_port()
    tell = held._tell

    async def first_word_only(request, context):
        async for chunk in tell(request, context):
            yield chunk
            if chunk.deltas:
                held.asked.set()
                await asyncio.Event().wait()

    tokenizer.generate = first_word_only
    serving = await started(node, port, stop_seconds=0.1)
    async with client_of(port) as http:
        streaming = asyncio.ensure_future(http.post("/v1/completions", json={**ASK, "stream": True}))
        await asyncio.wait_for(held.asked.wait(), 60)
        serving.cancel()
        *_, last, rest = (await streaming).text.split("\n\n")
    assert rest == ""
    assert "The gateway is stopping." in last
    assert "service_unavailable_error" in last
    await asyncio.wait([serving], timeout=60)


async def test_while_it_drains_it_listens_and_sends_clients_away(backend, tokenizer):
    held, node, port = Held(tokenizer), FakeNode(backend), free_port()
    serving = await started(node, port)
    async with client_of(port) as http, client_of(port) as others:
        answer = asyncio.ensure_future(http.post("/v1/completions", json=ASK))
        await asyncio.wait_for(held.asked.wait(), 60)
        assert (await others.get("/health/ready")).status_code == 200
        serving.cancel()
        while "stopping" not in node.info:
            await asyncio.sleep(0)
        assert not serving.cancelling(), "or a timeout would end it: see `asked_to_stop`"
        ready = await others.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "stopping")
        assert (await others.get("/health/live")).status_code == 200
        refused = await others.post("/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "The gateway is stopping."
        assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("1", "close")
        assert refused.headers["X-Request-Id"]
        held.go_on.set()
        assert (await answer).status_code == 200
    await asyncio.wait([serving], timeout=60)
    assert serving.cancelled()


async def test_a_second_signal_ends_what_runs_at_once(backend, tokenizer):
    held, node, port = Held(tokenizer), FakeNode(backend), free_port()
    serving = await started(node, port, stop_seconds=3600)
    async with client_of(port) as http:
        answer = asyncio.ensure_future(http.post("/v1/completions", json=ASK))
        await asyncio.wait_for(held.asked.wait(), 60)
        serving.cancel()
        await asyncio.sleep(0.05)
        assert not answer.done()
        serving.cancel()
        assert (await answer).status_code == 503
    await asyncio.wait([serving], timeout=60)
    assert serving.cancelled()


def lease_of(port, process_id="gateway-2", **more):
    info = {"url": f"http://127.0.0.1:{port}", **more}
    return Lease(process_id, "gateway", 1, info, socket.gethostname())


async def test_its_successor_listens_at_the_same_address(backend, tokenizer):
    held, port = Held(tokenizer), free_port()
    old, new = FakeNode(backend), FakeNode(backend)
    first = await started(old, port)
    async with client_of(port) as http, client_of(port) as waiting, client_of(port) as others:
        answer = asyncio.ensure_future(http.post("/v1/completions", json=ASK))
        assert (await waiting.get("/health/live")).status_code == 200
        await asyncio.wait_for(held.asked.wait(), 60)
        backend.lease_list += [lease_of(port, old.id)]
        second = await started(new, port)
        backend.lease_list += [lease_of(port)]
        first.cancel()
        while "stopping" not in old.info:
            await asyncio.sleep(0)
        # A connection from before is served once more; new ones reach the successor, all of them.
        served = await waiting.get("/v1/models")
        assert (served.status_code, served.headers["Connection"]) == (200, "close")
        for _ in range(20):
            ready = await others.get("/health/ready", headers={"Connection": "close"})
            assert ready.status_code == 200
        held.go_on.set()
        assert (await answer).status_code == 200
        await asyncio.wait([first], timeout=60)
        assert first.cancelled()
        assert (await others.post("/v1/completions", json=ASK)).status_code == 200
    second.cancel()
    await asyncio.wait([second], timeout=60)


async def test_a_port_of_another_deployment_is_not_shared(backend):
    port = free_port()
    serving = await started(FakeNode(backend), port)
    with pytest.raises(StartError, match=f"^port {port} is taken"):
        await main.serve(FakeNode(backend), GatewaySettings(port=port))
    serving.cancel()
    await asyncio.wait([serving], timeout=60)


async def test_a_part_that_fails_is_the_end_of_the_process(backend, monkeypatch):
    async def watch(self):
        raise ZeroDivisionError

    monkeypatch.setattr(Generator, "watch", watch)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(main.serve(FakeNode(backend), GatewaySettings(port=free_port())), 60)


@pytest.mark.parametrize(("room", "warned"), [(2**30, True), (2 * 2**30, False), (0, False)])
async def test_a_redis_that_clients_could_fill_is_told_of(line, caplog, room, warned):
    stored = GatewaySettings(files_bytes=2**30, idempotency_seconds=0).stored_bytes
    await line.execute(("CONFIG", "SET", "maxmemory", room))
    try:
        await main._look_for_room(line, stored)
    finally:
        await line.execute(("CONFIG", "SET", "maxmemory", 0))
    said = "Redis may take 1024 MiB (maxmemory), what may be stored there 1280 MiB"
    assert any(one.getMessage().startswith(said) for one in caplog.records) == warned
    assert bool(caplog.records) == warned
