"""Images whose addresses a request names: fetched from hosts that the operator allows, and from no others."""

import asyncio
import json
import ssl
import subprocess
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.api.messages.images import UNSEEN
from gateway.app import Options
from gateway.http.body_memory import MAX_BODY_BYTES
from gateway.upstream import fetched_images
from gateway.upstream.image_hosts import ImageHosts
from ops.runtime.image_store import MAX_IMAGE_BYTES, MAX_IMAGES
from tests.unit.gateway.behaviour.test_images import CHAT, PNG, Store
from tests.unit.gateway.conftest import JSON, app_of, stores_of


class Host:
    """A web server. It answers with what `pages` has, by path: bytes, or a function of the connection."""

    def __init__(self):
        self.pages = {"/fox.png": answer(PNG)}
        self.asked, self.left = [], asyncio.Event()
        self.port = 0

    def url(self, path="/fox.png"):
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            self.asked.append(head)
            page = self.pages[path]
            if callable(page):
                await page(reader, writer)
            else:
                writer.write(page)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.left.set()
            writer.close()


def answer(body, status="200 OK", **headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def web(context=None):
    host = Host()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=context)
    host.port = server.sockets[0].getsockname()[1]
    async with server:
        yield host


@pytest.fixture
async def host():
    async with web() as host:
        yield host


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def ask(backend, store):
    """Asks a gateway that fetches from `hosts`."""
    backend.lease_list[0].info["images"] = True

    async def ask(body, hosts=(), path=CHAT, **options):
        options |= {"image_hosts": ImageHosts(hosts) if hosts else None}
        app = app_of(backend, stores=stores_of(images=store), options=Options(**options))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=JSON, timeout=60
        ) as http:
            found = await http.post(path, json={"model": "m", **body})
        assert app.state.bodies.held == 0
        return found

    return ask


def chat(*urls):
    return {"messages": [{"role": "user", "content": [_image(url) for url in urls]}]}


def _image(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def here(host):
    return [f"127.0.0.1:{host.port}"]


async def test_in_the_chat_api_each_address_once(ask, host, store, tokenizer):
    host.pages["/snow.png?size=2&name=%E2%9D%84"] = answer(PNG + b"2")
    urls = [host.url(), host.url("/snow.png?size=2&name=❄"), host.url()]
    found = await ask(chat(*urls), here(host))
    assert found.status_code == 200, found.text
    (message,) = tokenizer.requests[0].chat.messages
    assert message.content == ""
    assert [store.ever[image.file.name] for image in message.images] == [PNG, PNG + b"2", PNG]
    assert all(image.low_detail for image in message.images)
    assert len(host.asked) == 2
    assert "cookie" not in host.asked[0].lower()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/messages",
            lambda url: {
                "max_tokens": 5,
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}
                ],
            },
        ),
        (
            "/v1/responses",
            lambda url: {
                "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
                "store": False,
            },
        ),
        ("/tokenize", chat),
    ],
)
async def test_in_other_apis(ask, host, store, path, body):
    found = await ask(body(host.url()), here(host), path)
    assert found.status_code == 200, found.text
    assert list(store.ever.values()) == [PNG]


async def test_without_the_setting_nothing_is_fetched(ask, host):
    found = await ask(chat(host.url()))
    assert found.status_code == 400
    assert found.json()["error"]["code"] == "invalid_image_url"
    assert "fetches none" in found.json()["error"]["message"]
    assert host.asked == []


async def test_a_model_that_sees_nothing_is_sent_nothing(ask, backend, host):
    backend.lease_list[0].info["images"] = False
    found = await ask(chat(host.url()), here(host))
    assert (found.status_code, found.json()["error"]["param"]) == (400, "messages")
    assert host.asked == []


async def _slow(_, writer):
    writer.write(answer(PNG)[:-1])
    await writer.drain()
    await asyncio.sleep(60)


async def _cut(_, writer):
    writer.write(answer(PNG)[:-1])


BAD = {
    "/missing": (answer(b"no", "404 Not Found"), "answers with 404"),
    "/page": (answer(b"<html>", Content_Type="image/png"), "PNG, JPEG, WebP or GIF"),
    "/large": (answer(PNG.ljust(MAX_IMAGE_BYTES + 1)), "more than 16 MiB"),
    "/packed": (answer(PNG, Content_Encoding="gzip"), "encoding"),
    "/round": (answer(b"", "302 Found", Location="/round"), "more than 3 times"),
    "/away": (answer(b"", "302 Found", Location="http://169.254.169.254/latest"), "nothing from its host"),
    "/file": (answer(b"", "302 Found", Location="file:///etc/passwd"), "http or https"),
    "/none": (answer(b"", "302 Found", Location="http://[x"), "no address"),
    "/port": (answer(b"", "301 Moved", Location="//127.0.0.1:1/"), "nothing from its host"),
    "/cut": (_cut, "broke off"),
    "/slow": (_slow, "in time"),
    "/junk": (b"SSH-2.0-OpenSSH_9.2\r\n", "broke off"),
}


@pytest.mark.parametrize("path", BAD)
async def test_what_is_refused(ask, host, monkeypatch, path):
    monkeypatch.setattr(fetched_images, "SECONDS", 0.3)
    host.pages[path], said = BAD[path]
    found = await ask(chat(host.url(path)), here(host))
    error = found.json()["error"]
    assert (found.status_code, error["code"], error["param"]) == (400, "invalid_image_url", "messages")
    assert said in error["message"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://user:key@127.0.0.1:{port}/fox.png", "a host alone"),
        ("http://127.0.0.1:99999/", "no address"),
        ("http:///fox.png", "a host alone"),
        ("http://[::1", "no address"),
        ("http://localhost/fox.png", "nothing from its host"),
    ],
)
async def test_addresses_that_are_refused(ask, host, url, said):
    found = await ask(chat(url.format(port=host.port)), here(host))
    assert found.status_code == 400
    assert said in found.json()["error"]["message"]


async def test_what_no_client_writes_is_not_looked_up(host):
    """A library may take the part before a NUL for the name."""
    fetcher = fetched_images.ImageFetcher(ImageHosts(["*.example.com"]))
    url = f"http://127.0.0.1\0.example.com:{host.port}/fox.png"
    found = await fetcher.fetch_all([url], "t", lambda _: None)
    assert "a host alone" in found[url].reason


async def test_too_many_are_refused_before_one_is_fetched(ask, host):
    found = await ask(chat(*(host.url(f"/{number}") for number in range(MAX_IMAGES + 1))), here(host))
    assert found.status_code == 400
    assert f"at most {MAX_IMAGES} images" in found.json()["error"]["message"]
    assert host.asked == []


async def test_private_addresses_are_not_told_from_names_that_there_are_not(ask, host):
    said = set()
    for name in ("localhost", "there-is-no-such-name.invalid"):
        url = f"http://{name}/fox.png"
        found = await ask(chat(url), ["*"])
        said.add(found.json()["error"]["message"].replace(url, ""))
    assert len(said) == 1
    assert "cannot be reached" in said.pop()


async def test_it_leads_on(ask, host, store):
    host.pages["/a"] = answer(b"", "302 Found", Location="b")
    host.pages["/b"] = answer(b"", "308 Permanent Redirect", Location=host.url())
    found = await ask(chat(host.url("/a")), here(host))
    assert found.status_code == 200, found.text
    assert list(store.ever.values()) == [PNG]


async def test_a_request_has_no_more_bytes_than_a_body(ask, host):
    for number in range(2):
        host.pages[f"/{number}"] = answer(PNG.ljust(MAX_IMAGE_BYTES))
    found = await ask(chat(host.url("/0"), host.url("/1")), here(host))
    assert found.status_code == 400
    assert f"{MAX_BODY_BYTES // 2**20} MiB" in found.json()["error"]["message"]


async def test_new_ones_do_not_wait_for_earlier_ones_whose_host_is_silent(ask, host, store, monkeypatch):
    monkeypatch.setattr(fetched_images, "SECONDS", 1.0)
    host.pages |= {f"/{number}": _slow for number in range(fetched_images.AT_ONCE)}
    earlier = chat(*(host.url(f"/{number}") for number in range(fetched_images.AT_ONCE)))["messages"]
    found = await ask({"messages": [*earlier, TURNS[0], *chat(host.url())["messages"]]}, here(host))
    assert found.status_code == 200, found.text
    assert list(store.ever.values()) == [PNG]


TURNS = [
    {"role": "assistant", "content": "A fox."},
    {"role": "user", "content": "And what else?"},
]


async def test_a_text_stands_for_an_earlier_one_that_is_gone(ask, host, store, tokenizer):
    host.pages["/gone"] = answer(b"", "404 Not Found")
    earlier = chat(host.url("/gone"), host.url())["messages"]
    found = await ask({"messages": earlier + TURNS}, here(host))
    assert found.status_code == 200, found.text
    assert found.headers["X-Quire-Ignored"] == "messages.image"
    message = tokenizer.requests[0].chat.messages[0]
    assert message.content == UNSEEN
    assert [image.offset for image in message.images] == [len(UNSEEN)]
    assert list(store.ever.values()) == [PNG]
    strict = await ask({"messages": earlier + TURNS}, here(host), strict_fields=True)
    assert strict.status_code == 400


async def test_a_text_stands_for_what_a_tool_has_given(ask, host, tokenizer):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [_image(host.url("/gone"))]},
    ]
    found = await ask({"messages": turns})
    assert found.status_code == 200, found.text
    assert found.headers["X-Quire-Ignored"] == "tool_result.image"
    assert tokenizer.requests[0].chat.messages[2].content == UNSEEN


async def test_a_client_that_leaves_ends_it(backend, host, store):
    backend.lease_list[0].info["images"] = True
    host.pages["/slow"] = _until_the_end
    app = app_of(
        backend,
        stores=stores_of(images=store),
        options=Options(image_hosts=ImageHosts(here(host))),
    )
    body = [{"type": "http.request", "body": json.dumps(chat(host.url("/slow"))).encode()}]
    asked = asyncio.Event()

    async def receive():
        if body:
            return body.pop()
        while not host.asked:
            await asyncio.sleep(0.01)
        asked.set()
        return {"type": "http.disconnect"}

    async def send(_):
        pass

    scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "client": ("127.0.0.1", 1)}
    scope |= {"headers": [(b"content-type", b"application/json"), (b"host", b"localhost")]}
    async with asyncio.timeout(30):
        await app(scope | {"scheme": "http", "http_version": "1.1", "raw_path": b""}, receive, send)
        await host.left.wait()
    assert asked.is_set()


async def _until_the_end(reader, _):
    await reader.read()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for `localhost` that nobody has signed, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    made, key = folder / "made.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


async def test_the_certificate_is_checked(ask, store, certificate, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with web(context) as host:
        urls = [f"https://{name}:{host.port}/fox.png" for name in ("localhost", "127.0.0.1")]
        hosts = [f"{name}:{host.port}" for name in ("localhost", "127.0.0.1")]
        assert (await ask(chat(urls[0]), hosts)).status_code == 400
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert (await ask(chat(urls[0]), hosts)).status_code == 200
        assert (await ask(chat(urls[1]), hosts)).status_code == 400
    assert list(store.ever.values()) == [PNG]
