"""Methods and paths that mean the same."""

import httpx
import openai
import pytest

from gateway.app import Options
from tests.unit.gateway.conftest import app_of


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/health/live", "/version"])
async def test_slashes_at_the_end_change_nothing(gateway, path):
    usual = await gateway.http.get(path)
    for end in ("/", "//"):
        other = await gateway.http.get(path + end)
        assert (other.status_code, other.json()) == (200, usual.json())


async def test_a_body_is_not_lost_with_a_slash(gateway):
    answer = await gateway.http.post("/v1/completions/", json={"model": "m", "prompt": "A", "max_tokens": 1})
    assert answer.json()["choices"][0]["text"] == "Once"


@pytest.mark.parametrize("path", ["/v1//completions", "//v1/completions", "//v1//completions/"])
async def test_a_base_url_may_end_with_a_slash(gateway, path):
    url = f"{gateway.url}{path}"
    answer = await gateway.http.post(url, json={"model": "m", "prompt": "A", "max_tokens": 1})
    assert answer.status_code == 200


async def test_a_model_s_name_may_have_slashes(backend):
    aliases = {"/models/m": "m"}
    transport = httpx.ASGITransport(app_of(backend, options=Options(aliases=aliases)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get("/v1/models//models/m")
    assert (answer.status_code, answer.json()["id"]) == (200, "/models/m")


@pytest.mark.parametrize("options", [{}, {"azure_deployment": "m"}])
async def test_azures_client(gateway, options):
    fields = {"azure_endpoint": gateway.url, "api_key": "none", "api_version": "2025-04-01-preview"}
    async with openai.AsyncAzureOpenAI(**fields, **options) as client:
        model = "gpt-4o" if options else "m"
        messages = [{"role": "user", "content": "A fox?"}]
        answer = await client.chat.completions.create(model=model, messages=messages, max_tokens=1)
        assert (answer.model, answer.choices[0].message.content) == ("m", "Once")
        answer = await client.completions.create(model=model, prompt="A", max_tokens=1)
        assert (answer.model, answer.choices[0].text) == ("m", "Once")
        assert (await client.embeddings.create(model=model, input="A")).model == "m"
        if not options:
            assert (await client.responses.create(model="m", input="A")).output_text
            assert [model.id async for model in await client.models.list()] == ["m"]


async def test_the_model_of_azures_path(backend):
    app = app_of(backend, options=Options(aliases={"models/m": "m"}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        for path, status in (("models/m", 200), ("models%2Fm", 200), ("n", 404)):
            answer = await http.post(
                f"/openai/deployments/{path}/completions", json={"model": "m", "prompt": "A"}
            )
            assert answer.status_code == status, path
        assert answer.json()["error"]["code"] == "model_not_found"
        assert (await http.post("/openai/v1/completions", json={"prompt": "A"})).json()["model"] == "m"
        for path in ("/openai", "/openai/deployments/m", "/openai/deployments/m/audio"):
            assert (await http.post(path, json={})).status_code == 404


async def test_the_page_is_still_there(gateway):
    assert (await gateway.http.get("/")).headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/models", "GET, HEAD, OPTIONS"),
        ("/v1/models/", "GET, HEAD, OPTIONS"),
        ("/v1/completions", "OPTIONS, POST"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/ping", "GET, HEAD, OPTIONS, POST"),
    ],
)
async def test_options_name_the_methods(gateway, path, methods):
    answer = await gateway.http.options(path)
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/models/m", "/v1/models/m"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/v1/messages", "/v1/messages"),
        ("/v1/api/chat", "/api/chat"),
        ("/api/v0/chat/completions", "/v1/chat/completions"),
        ("/generate", "/v1/completions"),
        ("/api/v0/nothing", None),
        ("/v1/nothing", None),
        ("/v1", None),
    ],
)
async def test_who_has_another_base_url_is_told(refusing, path, meant):
    refused = await refusing.post(path, json={})
    assert refused.status_code == 404
    assert refused.text.count("meant?") == bool(meant)
    assert f" Is {meant} meant?" in refused.text or meant is None


async def test_options_of_nothing(gateway):
    assert (await gateway.http.options("/nowhere")).status_code == 404


async def test_options_of_the_whole_server(gateway):
    answer = await gateway.http.request("OPTIONS", "/", extensions={"target": b"*"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert {"GET", "POST"} < set(answer.headers["allow"].split(", "))
