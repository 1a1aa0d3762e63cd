"""A tenant that asks for much of what it has stored, and does not read it, fills its own share alone."""

import asyncio
import json
import socket

import httpx
import pytest
from websockets.asyncio.client import connect

from gateway.http.body_memory import SMALL
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.file_store import PIECE_BYTES, FileStore
from gateway.upstream.job_queue import JobQueue
from gateway.upstream.response_store import ResponseStore
from tests.unit.gateway.conftest import app_of, serving, stores_of

KEYS = {"sk-a": "a", "sk-b": "b"}
A, B = ({"Authorization": f"Bearer sk-{one}"} for one in "ab")
MEMORY = 16 * 2**20
LARGE = [{"role": "user", "content": "x" * 500_000} for _ in range(3)]
MANY = 40


@pytest.fixture
async def served(backend, keys_of, line, prefix):
    files = FileStore(line, prefix, seconds=7200, tenant_bytes=2**24, all_bytes=2**25)
    stores = stores_of(
        responses=ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**25),
        batches=BatchStore(line, prefix, files),
        batch_queue=JobQueue(line, prefix, "batch", 1),
    )
    app = app_of(backend, keys_of(KEYS), stores=stores)
    app.state.bodies._most = MEMORY
    async with (
        serving(app) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http,
    ):
        # Those of connections are as large: the system would take megabytes off the gateway's hands.
        server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        yield app, server, http


async def unread(server, path):
    """Status lines of many answers whose clients read nothing more of them, and the connections."""
    found, connections = [], []
    for _ in range(MANY):
        taken = socket.socket()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        taken.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(taken, ("127.0.0.1", server.port))
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {A['Authorization']}\r\n\r\n"
        await loop.sock_sendall(taken, head.encode())
        found.append(int((await asyncio.wait_for(loop.sock_recv(taken, 12), 60))[9:]))
        connections.append(taken)
    return found, connections


async def given_back(app, connections):
    for one in connections:
        one.close()
    async with asyncio.timeout(60):
        while app.state.bodies.held:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", ["items", "items/{first}"])
async def test_items_of_a_conversation(served, path):
    app, server, http = served
    made = (await http.post("/v1/conversations", json={"items": LARGE}, headers=A)).json()["id"]
    listed = (await http.get(f"/v1/conversations/{made}/items", headers=A)).json()
    assert [one["content"][0]["text"] for one in listed["data"]] == [one["content"] for one in LARGE]
    path = path.format(first=listed["first_id"])
    found, connections = await unread(server, f"/v1/conversations/{made}/{path}")
    assert set(found) == {200, 429}
    assert MEMORY / 4 < app.state.bodies.held <= MEMORY / 2 + 2**22
    other = (await http.post("/v1/conversations", json={"items": LARGE[:1]}, headers=B)).json()["id"]
    assert (await http.get(f"/v1/conversations/{other}/items", headers=B)).status_code == 200
    await given_back(app, connections)
    assert (await http.get(f"/v1/conversations/{made}/items", headers=A)).json() == listed


async def test_what_is_in_a_file(served):
    app, server, http = served
    data = b"{}\n" * 2**20
    form = {"files": {"file": ("a", data)}, "data": {"purpose": "batch"}}
    made = (await http.post("/v1/files", headers=A, **form)).json()["id"]
    found, connections = await unread(server, f"/v1/files/{made}/content")
    assert (set(found), app.state.bodies.held) == ({200}, MANY * PIECE_BYTES)
    await given_back(app, connections)
    assert (await http.get(f"/v1/files/{made}/content", headers=A)).content == data


async def test_items_before_a_response(served):
    app, server, http = served
    ask = {"model": "m", "input": LARGE, "max_output_tokens": 1}
    made = (await http.post("/v1/responses", json=ask, headers=A)).json()["id"]
    found, connections = await unread(server, f"/v1/responses/{made}/input_items")
    assert set(found) == {200, 429}
    assert MEMORY / 4 < app.state.bodies.held <= MEMORY / 2 + 2**22
    await given_back(app, connections)


async def test_an_event_of_a_stream(served, line, prefix):
    app, server, http = served
    store = ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**25)
    name = f"resp_{7:032x}"
    response = {"id": name, "background": True, "status": "completed"}
    await store.put("a", name, {"response": response, "input": []})
    event = {"type": "response.completed", "text": "x" * 2**20}
    await store.append("a", name, 0, [json.dumps(event, separators=(",", ":")).encode()])
    path = f"/v1/responses/{name}?stream=true"
    found, connections = await unread(server, path)
    assert set(found) == {200, 429}
    assert MEMORY / 4 < app.state.bodies.held <= MEMORY / 2 + 2**22
    await given_back(app, connections)
    assert len((await http.get(path, headers=A)).content) > 2**20


async def test_pages_that_are_open_to_all_take_nothing_from_tenants(served):
    app, server, http = served
    assert len((await http.get("/openapi.json")).content) > 2 * SMALL
    found, connections = await unread(server, "/openapi.json")
    assert (set(found), app.state.bodies.held) == ({200}, 0)
    await given_back(app, connections)


async def test_an_answer_over_a_websocket_counts_until_it_is_taken(served):
    app, server, http = served
    made = (await http.post("/v1/conversations", json={}, headers=A)).json()["id"]
    url = f"ws://127.0.0.1:{server.port}/v1/stream"
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    taken.connect(("127.0.0.1", server.port))
    async with connect(url, sock=taken, additional_headers=A, max_size=None, write_limit=2**24) as ws:
        ws.transport.pause_reading()
        body = {"items": [{"role": "user", "content": "x" * 3_900_000}]}
        asked = {"type": "request", "id": "1", "path": f"/v1/conversations/{made}/items", "body": body}
        await ws.send(json.dumps(asked))
        async with asyncio.timeout(60):
            while not (await http.get(f"/v1/conversations/{made}/items", headers=A)).json()["data"]:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # what was asked has been done, and the answer waits
        assert app.state.bodies.held > 3_500_000
        ws.transport.resume_reading()
        assert json.loads(await asyncio.wait_for(ws.recv(), 60))["status"] == 200
        await given_back(app, ())
