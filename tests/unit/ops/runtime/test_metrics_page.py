"""The metrics of one process over HTTP, as a Prometheus asks for them and as others do."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from ops.runtime import metrics_page
from ops.runtime.errors import StartError
from ops.runtime.metric_names import PROMPT_TOKENS, RUNNING
from ops.runtime.metrics import Metrics
from ops.runtime.metrics_page import MetricsPage


@pytest.fixture
async def address() -> AsyncIterator[str]:
    metrics = Metrics()
    metrics.counter(PROMPT_TOKENS, "m").add(12)
    page = MetricsPage("worker-1", metrics)
    yield await page.listen("127.0.0.1:0")
    page.close()


async def ask(address: str, path: str = "/metrics", method: str = "GET", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.request(method, f"http://{address}{path}", headers=headers)


async def raw(address: str, request: bytes) -> bytes:
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_it_shows_the_process_s_metrics_in_both_formats(address: str) -> None:
    plain = await ask(address)
    assert plain.status_code == 200
    assert plain.headers["content-type"].startswith("text/plain")
    assert 'vllm:prompt_tokens_total{engine="worker-1",model_name="m"} 12.0' in plain.text
    newer = await ask(address, "/metrics?x=1", accept="application/openmetrics-text; version=1.0.0")
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert newer.text.endswith("# EOF\n")


async def test_it_knows_nothing_else(address: str) -> None:
    assert (await ask(address, "/")).status_code == 404
    assert (await ask(address, "/metrics/all")).status_code == 404
    assert (await ask(address, "/metrics/models")).status_code == 404
    assert (await ask(address, method="POST")).status_code == 405
    assert b" 404 " in await raw(address, b"nonsense\r\n\r\n")
    assert b" 431 " in await raw(address, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 99_999)
    assert (await ask(address)).status_code == 200


async def test_slow_readers_and_many_of_them_end(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "PATIENCE", 0.2)
    silent = [asyncio.ensure_future(raw(address, b"GET")) for _ in range(metrics_page.MOST_CONNECTIONS + 2)]
    assert await asyncio.gather(*silent) == [b""] * len(silent)
    monkeypatch.undo()  # a machine may stall for longer before it reads what this one sends
    assert (await ask(address)).status_code == 200


@pytest.mark.parametrize(
    ("address", "status"), [("127.0.0.1:99999", 2), ("no.such.host.invalid:1", 1), ("192.0.2.1:9101", 1)]
)
async def test_an_address_that_cannot_be_had_keeps_the_process_from_starting(
    address: str, status: int
) -> None:
    """For now, if it may be one later."""
    with pytest.raises(StartError, match=f"QUIRE_METRICS_ADDRESS={address}: ") as caught:
        await MetricsPage("worker-1").listen(address)
    assert caught.value.exit_status == status


async def test_an_address_of_ipv6() -> None:
    page = MetricsPage("worker-1", Metrics())
    try:
        address = await page.listen("[::1]:0")
    except StartError:
        pytest.skip("no IPv6 here")
    assert (await ask(address)).status_code == 200
    page.close()


async def test_a_page_of_all_processes_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = Metrics()
    metrics.counter(PROMPT_TOKENS, "m").add(7)
    reads = 0

    async def read_all() -> dict[str, bytes]:
        nonlocal reads
        reads += 1
        return {"worker-2": metrics.snapshot()}

    monkeypatch.setattr(metrics_page, "WRITE_SECONDS", 600)
    page = MetricsPage("gateway-1", Metrics(), read_all)
    address = await page.listen("127.0.0.1:0")
    found = [(await ask(address, "/metrics/all")).text for _ in range(3)]
    assert 'vllm:prompt_tokens_total{engine="worker-2",model_name="m"} 7.0' in found[0]
    assert (reads, len(set(found))) == (1, 1)
    metrics.gauge(RUNNING, "m").set(3)
    assert (
        'vllm:num_requests_running{engine="all",model_name="m"} 3.0'
        in (await ask(address, "/metrics/models")).text
    )
    newer = await ask(address, "/metrics/all", accept="application/openmetrics-text; version=1.0.0")
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert "worker-2" not in (await ask(address)).text
    page.close()
    monkeypatch.setattr(metrics_page, "WRITE_SECONDS", 0)
    page = MetricsPage("gateway-1", Metrics(), read_all)
    address = await page.listen("127.0.0.1:0")
    assert 'model_name="m"} 7.0' in (await ask(address, "/metrics/all")).text
    metrics.counter(PROMPT_TOKENS, "m").add(1)
    assert 'model_name="m"} 8.0' in (await ask(address, "/metrics/all")).text
    page.close()
