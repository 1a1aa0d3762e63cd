"""API keys over real processes: who is let in, what a tenant gets of the work, and our own clients."""

import asyncio
import io
import time
from collections.abc import Iterator

import httpx
import pytest

from ops.bench.load.client import CompletionClient
from ops.bench.load.workload import Question
from ops.bench.serve import model_of
from ops.cli.chat.session import chat
from ops.cli.main import main
from ops.launcher.acl import OPERATOR
from ops.launcher.redis_server import RedisServer
from tests.support.asking import attempts
from tests.support.deployment import Deployment, running

ASK = {"model": "quire-tiny", "prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True}
NORTH, SOUTH = "sk-north-of-24-characters", "sk-south-of-24-characters"
LONG_PROMPT = "The fox and the owl went for a walk in the snow. " * 8


@pytest.fixture(scope="module")
def guarded(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One sequence at a time, shared out fairly among the tenants whose keys these are."""
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "keys").write_text(f"north: {NORTH}\nsouth: {SOUTH}\n")
    yield from running(
        redis_server,
        directory,
        QUIRE_API_KEYS_FILE=str(directory / "keys"),
        QUIRE_MAX_SLOTS="1",
        QUIRE_LIMITS="requests_per_minute=5000 tokens_per_minute=500000 concurrency=200",
    )


def client(deployment: Deployment, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=f"{deployment.url}/v1", headers=headers, timeout=60)


async def test_nobody_escapes_its_share_by_inventing_users(guarded: Deployment) -> None:
    ended: list[str] = []

    async def ask(http: httpx.AsyncClient, name: str, user: str) -> None:
        answer = await http.post("/completions", json=ASK | {"user": user})
        assert answer.status_code == 200
        ended.append(name)

    async with client(guarded, NORTH) as north, client(guarded, SOUTH) as south:
        for attempt in attempts():
            ended.clear()
            flood = [asyncio.create_task(ask(north, "north", f"user-{number}")) for number in range(12)]
            await asyncio.sleep(0.1)
            await asyncio.gather(*(ask(south, "south", "user-0") for _ in range(3)))
            attempt.hit = ended.count("north") < 8
            await asyncio.gather(*flood)


async def test_no_tenant_learns_what_another_has_asked(guarded: Deployment) -> None:
    async def cached(http: httpx.AsyncClient) -> int:
        answer = await http.post("/completions", json=ASK | {"prompt": LONG_PROMPT, "max_tokens": 1})
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    async with client(guarded, NORTH) as north, client(guarded, SOUTH) as south:
        assert await cached(north) == 0
        assert await cached(north) > 0
        assert await cached(south) == 0
        assert await cached(south) > 0


def test_our_own_clients_send_a_key(
    guarded: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello.\n"))
        return chat(guarded.url, None)

    def measured() -> str:
        client = CompletionClient(guarded.url, "quire-tiny")
        return asyncio.run(client.ask(Question([1, 2, 3], 4))).error

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert said() == 1
    assert "API key" in capsys.readouterr().err
    assert "invalid_api_key" in measured()
    with pytest.raises(RuntimeError, match="401"):
        model_of(guarded.url)
    monkeypatch.setenv("OPENAI_API_KEY", SOUTH)
    assert said() == 0
    assert capsys.readouterr().out
    assert measured() == ""
    assert model_of(guarded.url) == "quire-tiny"


def test_keys_are_given_out_and_revoked_while_it_runs(
    guarded: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_REDIS_URL", guarded.redis_urls[OPERATOR])
    monkeypatch.setenv("QUIRE_STREAM_PREFIX", guarded.prefix)
    monkeypatch.setenv("XDG_STATE_HOME", str(guarded.directory))

    def status() -> int:
        return httpx.get(
            f"{guarded.url}/v1/models", headers={"Authorization": f"Bearer {secret}"}, timeout=60
        ).status_code

    def in_time(expected: int) -> bool:
        until = time.monotonic() + 60
        while (found := status()) != expected and time.monotonic() < until:
            time.sleep(0.05)
        return found == expected

    assert main(["keys", "add", "west"]) == 0
    secret = capsys.readouterr().out.strip()
    assert in_time(200)
    assert main(["keys", "revoke", "west"]) == 0
    assert in_time(401)


async def test_a_gateway_may_count_and_says_what_is_left(guarded: Deployment) -> None:
    async with client(guarded, SOUTH) as south:
        answer = await south.post("/completions", json=ASK)
    assert answer.status_code == 200
    assert answer.headers["x-ratelimit-limit-requests"] == "5000"
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 500_000
