"""Who may look inside, and who may read there what others ask."""

import json

import httpx
import pytest

from gateway.http.key_ring import KeyRing
from ops.runtime.api_keys import Key, digest_of
from proto.arrays import pack
from proto.inside_pb2 import Look
from tests.unit.gateway.conftest import app_of

TOKENS = [ord(letter) for letter in "foxes"]


def told(tenant="127.0.0.1"):
    look = Look(scheduler="scheduler-1")
    worker = look.workers.add(number=1, blocks=pack([2]), states=pack([2]))
    worker.limits.block_size = 16
    worker.sequences.add(
        number=1, request_id="r", tenant=tenant, computed=4, added_blocks=pack([2]), added_tokens=pack(TOKENS)
    )
    return look


async def watching(gateway, scheduler, tenant="127.0.0.1"):
    """Begin to look; returns once the scheduler has told something."""
    scheduler.looks.put_nowait(told(tenant))
    request = gateway.http.build_request("GET", "/v1/inside")
    response = await gateway.http.send(request, stream=True)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    async for line in response.aiter_lines():
        if line and "scheduler" in json.loads(line.removeprefix("data: ")):
            return response


async def test_whoever_sits_at_this_machine_sees_blocks_and_reads_them(gateway, scheduler):
    response = await watching(gateway, scheduler)
    try:
        found = (await gateway.http.get("/v1/inside/scheduler-1/1/2")).json()
        assert found == {"request_id": "r", "index": 0, "start": 0, "tokens": TOKENS[:4], "text": "foxe"}
        assert (await gateway.http.get("/v1/inside/scheduler-1/1/3")).status_code == 404
        assert (await gateway.http.get("/v1/inside/scheduler-1/1/x")).status_code in (400, 404)
    finally:
        await response.aclose()


async def test_rights_are_told(gateway):
    assert (await gateway.http.get("/v1/inside/rights")).json() == {"text": True, "trace_url": ""}


@pytest.mark.parametrize("path", ["/v1/inside", "/v1/inside/rights", "/v1/inside/scheduler-1/1/2"])
async def test_a_proxy_s_client_may_not_look(gateway, path):
    answer = await gateway.http.get(path, headers={"X-Forwarded-For": "192.0.2.7"})
    assert answer.status_code == 403
    assert "quire keys add NAME --rights inside" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("tenant", "rights", "status"),
    [
        ("north", [], 403),
        ("north", ["text"], 403),
        ("north", ["inside"], 200),
        ("south", ["inside"], 403),
        ("south", ["inside", "text"], 200),
    ],
)
async def test_keys_read_their_own_texts_and_with_a_right_those_of_others(
    backend, scheduler, tenant, rights, status
):
    keys = KeyRing({digest_of("sk"): Key(name="n", tenant="north", rights=frozenset(rights))})
    app = app_of(backend, keys)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    headers = {"Authorization": "Bearer sk"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        inside = app.state.inside.watch()
        scheduler.looks.put_nowait(told(tenant))
        async for change in inside:
            if "scheduler" in json.loads(change):
                break
        answer = await http.get("/v1/inside/scheduler-1/1/2")
        await inside.aclose()
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "no_right"
    else:
        assert answer.json()["text"] == "foxe"
