"""API keys: who is let in, in whose name, and what a key file may say."""

import logging

import httpx
import openai
import pytest

from gateway import __main__ as main
from gateway.settings import GatewaySettings
from ops.runtime.api_keys import KeyFileError, read_keys
from ops.runtime.errors import StartError
from tests.unit.gateway.conftest import app_of

LONG = 24 * "k"
KEYS = {"sk-north-1": "north", "sk-north-2": "north", "sk-south": "south"}


@pytest.fixture
def guarded(gateway, keys_of):
    """The same gateway, but behind keys; asked without a network."""
    transport = httpx.ASGITransport(app_of(gateway.backend, keys_of(KEYS)))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


ASK = {"model": "m", "prompt": "A", "max_tokens": 2}


NOBODY = [
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer sk-west"},
    {"Authorization": "Bearer sk-sout"},
    {"Authorization": "Bearer sk-south1"},
    {"Authorization": "sk-south"},
    {"Authorization": "Basic sk-south"},
    {"Authorization": "Bearer ÿ"},
    {"X-Api-Key": "sk-west"},
    {"Api-Key": "sk-west"},
    {"X-Api-Key": "sk-south", "Authorization": "Bearer sk-west"},
]
"""Headers without a known key."""


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/v1/models/m",
        "/v1/completions",
        "/v1/chat/completions",
        "/infill",
        "/rerank",
        "/openai/v1/completions",
    ],
)
async def test_without_a_known_key_nobody_passes(guarded, tokenizer, path):
    method = "GET" if "models" in path else "POST"
    for headers in NOBODY:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        answer = await guarded.request(method, path, headers=raw, json=ASK)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"]
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert not tokenizer.requests


@pytest.mark.parametrize("key", KEYS)
async def test_the_name_of_the_key_is_the_tenant(guarded, tokenizer, key):
    fields = {"user": "someone else", "cache_salt": "mine"}
    answer = await guarded.post("/v1/completions", headers=bearer(key), json=ASK | fields)
    assert answer.status_code == 200
    chat = {"model": "m", "messages": [{"role": "user", "content": "A"}]}
    assert (await guarded.post("/v1/chat/completions", headers=bearer(key), json=chat)).status_code == 200
    assert [request.tenant for request in tokenizer.requests] == [KEYS[key]] * 2
    assert [request.user for request in tokenizer.requests] == ["someone else", ""]
    first, second = (request.cache_salt for request in tokenizer.requests)
    assert (first, second) == (f"{KEYS[key]}:mine", f"{KEYS[key]}:")


async def test_without_keys_the_address_is_the_tenant_and_everybody_passes(gateway, tokenizer):
    ask = ASK | {"user": "someone", "cache_salt": "mine"}
    assert (await gateway.http.post("/v1/completions", headers=bearer("x"), json=ask)).status_code == 200
    (request,) = tokenizer.requests
    assert (request.tenant, request.user, request.cache_salt) == ("127.0.0.1", "someone", "mine")


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/openapi.json", "/ping", "/version", "/health/live", "/health/ready"]
)
async def test_page_and_health_are_open(guarded, path):
    assert (await guarded.get(path)).status_code == 200


async def test_the_openai_client(guarded):
    def client(key):
        return openai.AsyncOpenAI(base_url="http://localhost/v1", api_key=key, http_client=guarded)

    assert (await client("sk-south").models.list()).data[0].id == "m"
    with pytest.raises(openai.AuthenticationError) as refused:
        await client("sk-nobody").completions.create(**ASK)
    assert refused.value.code == "invalid_api_key"


async def test_keys_are_never_logged(guarded, caplog):
    caplog.set_level(logging.DEBUG)
    await guarded.get("/v1/models", headers=bearer("sk-south"))
    await guarded.get("/v1/models", headers=bearer("sk-guess"))
    assert "sk-south" not in caplog.text
    assert "sk-guess" not in caplog.text


def test_a_key_file(tmp_path):
    path = tmp_path / "keys"
    rest = 24 * "k"
    path.write_text(f"# ours\n\nnorth: sk-1{rest}\nnorth:sk-2{rest}\n  south-2.b :  sk:3#x{rest}  \r\n")
    names = {f"sk-1{rest}": "north", f"sk-2{rest}": "north", f"sk:3#x{rest}": "south-2.b"}
    assert read_keys(path) == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no key"),
        ("# north: sk-secret\n", "holds no key"),
        (f"a: sk-1{LONG}\nsk-secret\n", "line 2: must be"),
        ("a: sk-secret-of-23-letters\n", "line 1: a key must have at least 24 characters"),
        ("a: sk-secret b\n", "line 1: must be"),
        (": sk-secret\n", "line 1: must be"),
        ("a b: sk-secret\n", "line 1: must be"),
        (f"a: sk-secret{LONG}\nb: sk-secret{LONG}\n", "line 2: this key"),
    ],
)
async def test_a_bad_key_file_stops_the_process_with_one_line(tmp_path, text, reason):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(StartError, match=f"^QUIRE_API_KEYS_FILE=.*{reason}") as error:
        await main.serve(None, GatewaySettings(api_keys_file=str(path)))
    assert "sk-secret" not in str(error.value)
    with pytest.raises(KeyFileError, match="No such file"):
        read_keys(tmp_path / "nowhere")
