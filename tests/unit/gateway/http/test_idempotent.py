"""Requests that are sent twice: one answer, from whichever gateway, however the first one ended."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from gateway.errors import Unavailable
from gateway.http import claims as store
from gateway.http import idempotent
from gateway.http.body_memory import SMALL
from gateway.http.claims import Claims
from proto.rpc.line import Line
from proto.sampling_pb2 import NOT_FINISHED, STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta
from tests.unit.gateway.conftest import (
    JSON,
    PROMPT_TOKENS,
    FakeBackend,
    FakeTokenizer,
    Server,
    app_of,
    serving,
    stores_of,
)

ASK = {"model": "m", "prompt": "A", "max_tokens": 4}
KEY = {"Idempotency-Key": "order-7"}
PATH = "/v1/completions"


@pytest.fixture
def claims(redis_url: str, line: Line, prefix: str) -> Claims:
    return Claims(lambda: Line(redis_url), line, prefix, seconds=600, all_bytes=2**24)


@contextlib.asynccontextmanager
async def gateway(backend: FakeBackend, claims: Claims, **more: object) -> AsyncIterator[httpx.AsyncClient]:
    """One more gateway of the deployment."""
    app = app_of(backend, stores=stores_of(claims=claims), **more)
    async with serving(app) as server, client_of(server) as http:
        yield http


def client_of(server: Server) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{server.port}"
    return httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, headers=JSON)


@pytest_asyncio.fixture
async def two(backend: FakeBackend, claims: Claims) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with gateway(backend, claims) as one, gateway(backend, claims) as other:
        yield [one, other]


class Halting:
    """Says one word, and the last one when it is let go on."""

    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self.go_on, self.begun = asyncio.Event(), asyncio.Event()
        tokenizer.generate = self.generate

    async def generate(self, request, context):
        yield TextChunk(prompt=PromptInfo(tokens=len(PROMPT_TOKENS)))
        yield self.word("one", NOT_FINISHED)
        self.begun.set()
        await self.go_on.wait()
        yield self.word("two", STOP)

    def word(self, text, reason):
        return TextChunk(deltas=[TextDelta(text=text, token_ids=[1], finish_reason=reason)])


async def kept(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    """The answer to a request that was answered before."""
    answer = await http.post(PATH, json=ASK | fields, headers=KEY)
    assert answer.headers["idempotent-replayed"] == "true"
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_the_second_request_has_the_answer_of_the_first(two, tokenizer, stream):
    first = await two[0].post(PATH, json=ASK | {"stream": stream}, headers=KEY)
    assert "idempotent-replayed" not in first.headers
    for http in two:
        second = await kept(http, stream=stream)
        assert (second.status_code, second.content) == (200, first.content)
        assert second.headers["content-type"] == first.headers["content-type"]
        assert second.headers["x-request-id"] != first.headers["x-request-id"]
    assert len(tokenizer.requests) == 1
    other_key = await two[0].post(PATH, json=ASK, headers={"Idempotency-Key": "order-8"})
    no_key = await two[0].post(PATH, json=ASK)
    assert len({each.content for each in (first, other_key, no_key)}) == 3


async def test_an_answer_under_way_is_followed(two, tokenizer):
    halting = Halting(tokenizer)
    ask = {"json": ASK | {"stream": True}, "headers": KEY}
    async with two[0].stream("POST", PATH, **ask) as first, two[1].stream("POST", PATH, **ask) as second:
        pieces = [answer.aiter_text() for answer in (first, second)]
        begun = [await anext(each) for each in pieces]
        assert begun[0].split("\n\n")[0] == begun[1].split("\n\n")[0]
        assert "one" in begun[0]
        halting.go_on.set()
        rest = ["".join([piece async for piece in each]) for each in pieces]
    whole = [one + other for one, other in zip(begun, rest, strict=True)]
    assert whole[0] == whole[1]
    assert whole[0].endswith("data: [DONE]\n\n")
    assert len(tokenizer.requests) == 1


async def test_a_whole_answer_is_waited_for(two, tokenizer):
    halting = Halting(tokenizer)
    first = asyncio.ensure_future(two[0].post(PATH, json=ASK, headers=KEY))
    await halting.begun.wait()
    second = asyncio.ensure_future(two[1].post(PATH, json=ASK, headers=KEY))
    halting.go_on.set()
    assert (await first).content == (await second).content
    assert len(tokenizer.requests) == 1


async def test_another_request_under_the_key_is_refused(two, tokenizer):
    await two[0].post(PATH, json=ASK, headers=KEY)
    for path, body in ((PATH, ASK | {"prompt": "B"}), (PATH + "?x=1", ASK), ("/tokenize", ASK)):
        refused = await two[1].post(path, json=body, headers=KEY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "idempotency_key_reused")
    for wrong in (b"", b"k" * 256, "❄".encode() * 86):
        error = (await two[0].post(PATH, json=ASK, headers={"Idempotency-Key": wrong})).json()["error"]
        assert error["code"] == "invalid_idempotency_key"
        assert "has 1 to 255 bytes" in error["message"]
    assert len(tokenizer.requests) == 1


async def test_another_deployment_of_azures_path_is_another_request(two, tokenizer):
    paths = [f"/openai/deployments/{model}/completions" for model in ("m", "n")]
    assert (await two[0].post(paths[0], json=ASK, headers=KEY)).status_code == 200
    refused = await two[1].post(paths[1], json=ASK, headers=KEY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "idempotency_key_reused")
    assert (await two[1].post(paths[0], json=ASK, headers=KEY)).headers["idempotent-replayed"] == "true"


async def test_tenants_do_not_share_keys(backend, claims, tokenizer, keys_of):
    secrets = {"a" * 24: "north", "b" * 24: "south"}
    async with gateway(backend, claims, keys=keys_of(secrets)) as http:
        for secret in secrets:
            headers = KEY | {"Authorization": f"Bearer {secret}"}
            answer = await http.post(PATH, json=ASK, headers=headers)
            assert "idempotent-replayed" not in answer.headers
        assert (await http.post(PATH, json=ASK, headers=KEY)).status_code == 401
    assert len(tokenizer.requests) == 2


async def test_errors_are_not_kept(two, tokenizer):
    async def fail(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=len(PROMPT_TOKENS)))
        yield TextChunk(deltas=[TextDelta(text="one", token_ids=[1])])

    assert (await two[0].post(PATH, json=ASK | {"n": 0}, headers=KEY)).status_code == 400
    usual, tokenizer.generate = tokenizer.generate, fail
    broken = await two[0].post(PATH, json=ASK | {"stream": True}, headers=KEY)
    assert "internal_error" in broken.text
    tokenizer.generate = usual
    answer = await two[1].post(PATH, json=ASK | {"stream": True}, headers=KEY)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert len(tokenizer.requests) == 2


async def test_a_client_that_comes_back_finds_its_answer(two, tokenizer):
    halting = Halting(tokenizer)
    async with two[0].stream("POST", PATH, json=ASK | {"stream": True}, headers=KEY) as first:
        await anext(first.aiter_bytes())
    second = asyncio.ensure_future(two[1].post(PATH, json=ASK | {"stream": True}, headers=KEY))
    halting.go_on.set()
    assert (await second).text.endswith("data: [DONE]\n\n")
    assert len(tokenizer.requests) == 1


async def test_nobody_comes_back(two, tokenizer, monkeypatch, line, prefix):
    monkeypatch.setattr(idempotent, "ALONE_SECONDS", -1.0)
    usual = tokenizer.generate
    Halting(tokenizer)
    async with two[0].stream("POST", PATH, json=ASK | {"stream": True}, headers=KEY) as first:
        await anext(first.aiter_bytes())
    await asyncio.wait_for(tokenizer.cancelled.wait(), 60)
    claim = f"{prefix}claims:of:127.0.0.1:{hashlib.sha256(KEY['Idempotency-Key'].encode()).hexdigest()}"
    async with asyncio.timeout(60):
        while (await line.execute(("HMGET", claim, "owner", "done")))[0].count(None) == 1:
            await asyncio.sleep(0.01)  # it is neither dropped nor complete
    tokenizer.generate = usual
    late = await two[1].post(PATH, json=ASK | {"stream": True}, headers=KEY)
    assert "idempotent-replayed" not in late.headers, "an answer that was given up is not kept"
    assert late.text.endswith("data: [DONE]\n\n")


async def test_who_follows_a_stream_without_pauses_has_it_to_the_end(two, tokenizer, monkeypatch):
    """The client of the first request has left long before."""
    monkeypatch.setattr(idempotent, "ALONE_SECONDS", 0.5)
    monkeypatch.setattr(store, "BLOCK_SECONDS", 0.2)

    async def generate(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=len(PROMPT_TOKENS)))
        for number in range(60):
            reason = STOP if number == 59 else NOT_FINISHED
            yield TextChunk(deltas=[TextDelta(text="a", token_ids=[number], finish_reason=reason)])
            await asyncio.sleep(0.05)

    tokenizer.generate = generate
    ask = ASK | {"stream": True, "max_tokens": 60}
    async with two[0].stream("POST", PATH, json=ask, headers=KEY) as first:
        await anext(first.aiter_bytes())
    second = await kept(two[1], stream=True, max_tokens=60)
    assert second.text.endswith("data: [DONE]\n\n")
    assert len(tokenizer.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_follower_holds_its_body_until_the_answer_begins(backend, claims, tokenizer, stream):
    app, halting = app_of(backend, stores=stores_of(claims=claims)), Halting(tokenizer)
    bodies = app.state.bodies
    ask = {"json": ASK | {"stream": stream}, "headers": KEY}

    async def holding(size):
        async with asyncio.timeout(60):
            while bodies.held != size:
                await asyncio.sleep(0.01)

    async with serving(app) as server, client_of(server) as http, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(http.post(PATH, **ask))
        await halting.begun.wait()
        size = bodies.held
        assert size > 0
        second = tasks.create_task(http.post(PATH, **ask))
        async with asyncio.timeout(60):
            while not len(claims.followers):
                await asyncio.sleep(0.01)
        # Of a stream that has begun, what its client has not taken yet counts instead.
        await holding(size + SMALL if stream else 2 * size)
        halting.go_on.set()
        assert (await first).content == (await second).content
        await holding(0)


async def test_the_claim_of_a_gateway_that_has_died_is_free(two, claims, tokenizer, monkeypatch):
    monkeypatch.setattr(store, "LEASE_SECONDS", 0.2)
    monkeypatch.setattr(idempotent, "_fingerprint", lambda scope, body: "same")
    dead = await claims.take("127.0.0.1", KEY["Idempotency-Key"], "same")
    assert dead.own
    answer = await two[0].post(PATH, json=ASK, headers=KEY)
    assert (answer.status_code, "idempotent-replayed" in answer.headers) == (200, False)
    assert len(tokenizer.requests) == 1


async def test_a_follower_whose_owner_dies_is_told(two, claims, monkeypatch):
    monkeypatch.setattr(idempotent, "_fingerprint", lambda scope, body: "same")
    dead = await claims.take("127.0.0.1", KEY["Idempotency-Key"], "same")
    head = idempotent._head_of({"status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await dead.keep([head, (store.PIECE, b"data: 1\n\n")])
    async with two[0].stream("POST", PATH, json=ASK, headers=KEY) as answer:
        pieces = answer.aiter_text()
        assert await anext(pieces) == "data: 1\n\n"
        await dead.drop()
        assert "has ended early" in "".join([piece async for piece in pieces])


async def test_an_answer_that_is_too_long_is_not_kept(two, tokenizer, monkeypatch):
    monkeypatch.setattr(idempotent, "MAX_ANSWER_BYTES", 100)
    for http in two:
        answer = await http.post(PATH, json=ASK, headers=KEY)
        assert "idempotent-replayed" not in answer.headers
    assert len(tokenizer.requests) == 2


async def test_a_key_of_a_socket_is_that_of_http(backend, claims, tokenizer):
    app = app_of(backend, stores=stores_of(claims=claims))
    async with serving(app) as server, client_of(server) as http:
        async with connect(f"ws://127.0.0.1:{server.port}/v1/stream", proxy=None) as socket:
            made = []
            for key in ("❄", "☃", "❄"):
                frame = {"type": "request", "id": "a", "path": PATH, "body": ASK, "idempotency_key": key}
                await socket.send(json.dumps(frame))
                made.append(json.loads(await socket.recv())["body"])
        assert made[0] == made[2] != made[1]
        answer = await http.post(PATH, json=ASK, headers={"Idempotency-Key": "❄".encode()})
        assert answer.json() == made[0]
    assert len(tokenizer.requests) == 2


@pytest.mark.parametrize("followed", [False, True])
async def test_what_is_cancelled_on_a_socket_ends_unless_somebody_waits(backend, claims, tokenizer, followed):
    """It does not wait for a client that comes back."""
    halting, ask = Halting(tokenizer), ASK | {"stream": True}
    app = app_of(backend, stores=stores_of(claims=claims))
    async with (
        serving(app) as server,
        client_of(server) as http,
        connect(f"ws://127.0.0.1:{server.port}/v1/stream", proxy=None) as socket,
    ):
        frame = {"type": "request", "id": "a", "path": PATH, "body": ask, "idempotency_key": "order-7"}
        await socket.send(json.dumps(frame))
        assert json.loads(await socket.recv())["type"] == "event"
        if followed:
            second = asyncio.ensure_future(http.post(PATH, json=ask, headers=KEY))
            async with asyncio.timeout(60):
                while not len(claims.followers):
                    await asyncio.sleep(0.01)
        await socket.send('{"type": "cancel", "id": "a"}')
        if followed:
            await asyncio.sleep(1.5)
            halting.go_on.set()
            assert (await second).text.endswith("data: [DONE]\n\n")
        else:
            await asyncio.wait_for(tokenizer.cancelled.wait(), idempotent.ALONE_SECONDS / 2)
        assert json.loads(await socket.recv()) == {"type": "end", "id": "a", "cancelled": True}
    assert len(tokenizer.requests) == 1


async def test_a_huge_body_with_its_length_is_refused_before_it_is_sent(backend, claims):
    async with serving(app_of(backend, stores=stores_of(claims=claims))) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Idempotency-Key: k\r\nContent-Length: 52428800\r\n\r\n{{".encode())
        status = await asyncio.wait_for(reader.readline(), 60)
        assert status.split()[1] == b"413"
        writer.close()


async def test_without_a_key_nothing_is_asked_of_redis(backend):
    def connect() -> Line:
        raise AssertionError

    async with gateway(backend, Claims(connect, connect, "", 1, 1)) as http:
        assert (await http.post(PATH, json=ASK)).status_code == 200
        assert (await http.get("/v1/models", headers=KEY)).status_code == 200
        form = KEY | {"Content-Type": "multipart/form-data"}
        assert (await http.post(PATH, content=b"x", headers=form)).status_code == 415


async def test_without_redis_a_request_with_a_key_is_refused(backend, monkeypatch):
    monkeypatch.setattr(store, "LEASE_SECONDS", 0.1)
    away = Line("redis://127.0.0.1:1/0")
    async with gateway(backend, Claims(lambda: away, away, "", 1, 1)) as http:
        assert (await http.post(PATH, json=ASK, headers=KEY)).status_code == Unavailable.status
