"""Hosts that the gateway answers to, and web pages that may ask it."""

import logging

import httpx
import pytest

from gateway.app import Options
from gateway.http.key_ring import KeyRing
from gateway.http.origin import MOST_TOLD, TOLD_SECONDS, Access, OriginGuard
from gateway.settings import GatewaySettings
from proto.rpc import BusAway
from tests.unit.gateway.conftest import JSON, NoTokenizer, app_of

BAD_BODY = b"{"
"""A request with this body is refused with 400 once it has passed all checks of who asks."""


def client(access: Access = Access(), **more) -> httpx.AsyncClient:  # noqa: B008
    transport = httpx.ASGITransport(app_of(NoTokenizer(), options=Options(access), **more))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8000", headers=JSON)


async def ask(access: Access = Access(), **headers: str) -> httpx.Response:  # noqa: B008
    async with client(access) as http:
        return await http.post("/v1/completions", content=BAD_BODY, headers=headers)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LocalHost",
        "127.0.0.1:8000",
        "[::1]:8000",
        "192.168.1.5",
        "[2001:db8::1]",
        "host.docker.internal:8000",
        "gpubox.local",
        "app.localhost:8000",
        "gpubox.home.arpa",
        "quire-gateway.default.svc.cluster.local",
        "gpubox",
        "Quire_gateway:8000",
    ],
)
async def test_hosts_that_no_foreign_page_can_have(host):
    assert (await ask(host=host)).status_code == 400


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "local.example",
        "gpubox.tail1234.ts.net",
        ".local",
        "internal.evil.example",
        "evil.example/.local",
        "a@b",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/", "/health/live", "/nowhere"])
async def test_a_name_that_was_made_to_point_here(host, path):
    async with client() as http:
        answer = await http.request("POST" if "comp" in path else "GET", path, headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")
    assert answer.headers["x-request-id"]


async def test_a_request_has_one_host():
    async with client() as http:
        twice = await http.get("/health/live", headers=[("host", "localhost"), ("host", "localhost")])
    assert (twice.status_code, twice.json()["error"]["code"]) == (400, "invalid_http")
    guard = OriginGuard(app_of(NoTokenizer()), Access(), KeyRing())
    assert await guard.refusal("1.1", [], []) is not None
    assert await guard.refusal("1.0", [], []) is None


async def test_where_a_key_is_needed_the_host_may_be_any(keys_of):
    """A page whose name was made to point here has no key."""
    async with client(keys=keys_of({"sk": "a"})) as http:
        page = {"host": "evil.example", "origin": "http://evil.example"}
        assert (await http.post("/v1/completions", headers=page, content=BAD_BODY)).status_code == 401
        asked = page | {"authorization": "Bearer sk"}
        assert (await http.post("/v1/completions", headers=asked, content=BAD_BODY)).status_code == 400
        asked["origin"] = "http://other.example"
        answer = await http.post("/v1/completions", headers=asked, content=BAD_BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


async def test_a_host_while_it_is_not_known_whether_keys_are_needed():
    class Away:
        async def version(self):
            raise BusAway

    keys = KeyRing(store=Away())
    for host, status in (("evil.example", 403), ("localhost", 503)):
        async with client(keys=keys) as http:
            answer = await http.post("/v1/completions", headers={"host": host}, content=BAD_BODY)
        assert answer.status_code == status


async def test_the_machines_own_name(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "GPU.example.com")
    access = GatewaySettings().access
    assert (await ask(access, host="gpu.example.com:8000")).status_code == 400
    assert (await ask(access, host="other.example.com")).status_code == 403


async def test_a_page_that_is_refused_is_told_in_the_log_once(caplog):
    """The page's script cannot read why."""
    caplog.set_level(logging.WARNING, "gateway.http.origin")
    guard = OriginGuard(app_of(NoTokenizer()), Access(), KeyRing())
    for number in (0, 0, *range(MOST_TOLD + 9)):
        assert await guard.refusal("1.1", ["localhost"], [f"https://app{number}.example\n"]) is not None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == MOST_TOLD
    assert told[0] == r"refused pages of 'https://app0.example\n': QUIRE_ALLOWED_ORIGINS can name them"


async def test_a_page_is_told_of_again_after_an_hour(caplog, monkeypatch):
    now = 5.0  # the machine has just started
    monkeypatch.setattr("gateway.http.origin.time.monotonic", lambda: now)
    caplog.set_level(logging.WARNING, "gateway.http.origin")
    guard = OriginGuard(app_of(NoTokenizer()), Access(), KeyRing())
    for seconds in (TOLD_SECONDS - 1, 2):
        for number in range(MOST_TOLD + 1):
            await guard.refusal("1.1", ["localhost"], [f"https://app{number}.example"])
        now += seconds
        await guard.refusal("1.1", ["localhost"], ["https://mine.example"])
        assert ("mine" in caplog.text) == (seconds == 2)


async def test_the_page_that_is_told_is_the_one_that_is_refused(caplog):
    caplog.set_level(logging.WARNING, "gateway.http.origin")
    guard = OriginGuard(app_of(NoTokenizer()), Access(), KeyRing())
    refusal = await guard.refusal("1.1", ["localhost"], ["http://localhost", "https://other.example"])
    assert "https://other.example" in str(refusal)
    assert "https://other.example" in caplog.text


@pytest.mark.parametrize(
    ("allowed", "host", "passes"),
    [
        ("api.example.com", "api.example.com", True),
        ("api.example.com", "API.Example.com:443", True),
        ("api.example.com", "other.example.com", False),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("one, two.example", "two.example", True),
        ("*", "anything.example", True),
    ],
)
async def test_names_that_are_allowed(allowed, host, passes):
    access = GatewaySettings(allowed_hosts=allowed).access
    assert (await ask(access, host=host)).status_code == (400 if passes else 403)


async def test_the_host_that_it_listens_on():
    access = GatewaySettings(host="Box.example", open_to_all=True).access
    assert (await ask(access, host="box.example:8000")).status_code == 400


@pytest.mark.parametrize(
    ("host", "origin", "passes"),
    [
        ("localhost:8000", "http://localhost:8000", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("localhost", "https://localhost", True),
        ("localhost:8000", "https://evil.example", False),
        ("localhost:8000", "http://localhost:3000", False),
        ("localhost:8000", "http://127.0.0.1:8000", False),
        ("localhost:8000", "null", False),
        ("localhost:8000", "", False),
        ("localhost:8000", "http://localhost:8000@evil.example", False),
        ("localhost:8000", "http://[", False),
    ],
)
async def test_pages_that_may_ask(host, origin, passes):
    answer = await ask(host=host, origin=origin)
    assert answer.status_code == (400 if passes else 403)
    if not passes:
        assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.mark.parametrize("allowed", ["https://app.example", "https://APP.example, https://b.example", "*"])
async def test_an_allowed_page_can_read_answers(allowed, keys_of):
    access = GatewaySettings(allowed_origins=allowed).access
    origin = {"origin": "https://app.example"}
    answer = await ask(access, **origin)
    assert answer.status_code == 400
    assert answer.headers["access-control-allow-origin"] in ("https://app.example", "*")
    async with client(access, keys=keys_of({"sk": "a"})) as http:
        asked = await http.options("/v1/completions", headers=origin | PREFLIGHT)
        refused = await http.post("/v1/completions", headers=origin, content=BAD_BODY)
    assert (asked.status_code, refused.status_code) == (200, 401)
    assert asked.headers["access-control-allow-headers"] == "authorization"
    assert refused.headers["access-control-allow-origin"] in ("https://app.example", "*")


async def test_an_allowed_page_can_read_of_a_fault_of_ours():
    access = Access.of(origins=["https://app.example"])
    app = app_of(NoTokenizer(), options=Options(access))  # it raises what nobody expects
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        ask = {"model": "m", "prompt": "A"}
        for page, read in (("https://app.example", "https://app.example"), ("http://localhost", None)):
            answer = await http.post("/v1/completions", json=ask, headers={"origin": page})
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
            assert answer.headers.get("access-control-allow-origin") == read


@pytest.mark.parametrize(
    "origin",
    ["app://obsidian.md", "chrome-extension://abcdef", "tauri://localhost", "vscode-webview://1a-2b"],
)
async def test_an_app_made_of_pages_may_be_allowed(origin):
    access = GatewaySettings(allowed_origins=f"https://app.example,{origin}").access
    answer = await ask(access, origin=origin)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (400, origin)
    assert (await ask(access, origin=f"{origin}x")).status_code == 403


async def test_a_page_that_is_not_allowed_beside_one_that_is():
    access = GatewaySettings(allowed_origins="https://app.example").access
    async with client(access) as http:
        answer = await http.options(
            "/v1/completions", headers={"origin": "https://evil.example", **PREFLIGHT}
        )
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "bad",
    [
        {"allowed_origins": "app.example"},
        {"allowed_origins": "https://a/b"},
        {"allowed_origins": "app:obsidian.md"},
        {"allowed_origins": "://a"},
        {"allowed_hosts": "a b"},
    ],
)
def test_settings_that_cannot_be_meant(bad):
    with pytest.raises(ValueError, match="pattern"):
        GatewaySettings(**bad)
