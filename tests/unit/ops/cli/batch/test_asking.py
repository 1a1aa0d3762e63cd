"""Requests of a file are each answered once, by a gateway that may be busy, or away for a while."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.cli.batch import asking
from ops.cli.batch.asking import MOST_BROKEN_OFF, Asker, ask_all
from ops.cli.batch.lines import Line, Results
from ops.runtime.errors import LaunchError

LINES = [Line(f"line-{number}", "/v1/completions", {"prompt": f"{number}"}) for number in range(20)]


class Gateway:
    """Answers prompts with themselves, after what is in `before` for them."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.models = Counter[str]()
        self.before: dict[str, list[httpx.Response | Exception]] = {}

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "encoder", "generates": False}, {"id": "m"}]})
        body = json.loads(request.content)
        prompt = body["prompt"]
        self.asked[prompt] += 1
        self.models[body["model"]] += 1
        if first := self.before.get(prompt):
            found = first.pop(0)
            if isinstance(found, Exception):
                raise found
            return found
        content = json.dumps({"text": f"<{prompt}>"})
        return httpx.Response(200, content=content, headers={"X-Request-Id": "r"})


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr(asking, "AGAIN_SECONDS", 0)
    return Gateway()


async def ask(gateway: Gateway, results: Results, gone_seconds: float = 60.0) -> int:
    """How many were said to be done."""
    done = 0

    def one() -> None:
        nonlocal done
        done += 1

    transport = httpx.MockTransport(gateway.answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        await ask_all(iter(LINES), results, Asker(client, gone_seconds), 4, one)
    return done


def read(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


async def test_all_are_answered_and_none_twice(gateway: Gateway, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Results(out) as results:
        results.add({"custom_id": "line-3", "response": {"status_code": 200}})
        assert await ask(gateway, results) == 19
        assert results.failed == 0
    found = read(out)
    assert len(found) == 20
    assert found["line-7"]["response"] == {"status_code": 200, "request_id": "r", "body": {"text": "<7>"}}
    assert "3" not in gateway.asked
    assert set(gateway.asked.values()) == {1}
    assert gateway.models == {"m": 19}


async def test_half_a_character_is_asked_and_answered(gateway: Gateway, tmp_path: Path) -> None:
    transport = httpx.MockTransport(gateway.answer)
    with Results(tmp_path / "out") as results:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            line = Line("\ud800", "/v1/completions", {"prompt": "\ud800"})
            results.add(await Asker(client).result(line, "m"))
    assert gateway.asked == {"\ud800": 1}
    assert read(tmp_path / "out")["\ud800"]["response"]["body"] == {"text": "<\ud800>"}


async def test_errors_are_results_and_what_is_busy_is_asked_again(gateway: Gateway, tmp_path: Path) -> None:
    busy = [httpx.Response(status, headers={"Retry-After": "0"}) for status in (429, 503)]
    gateway.before = {
        "1": [*busy],
        "2": [httpx.Response(400, json={"error": {"message": "No."}})],
        "3": [httpx.Response(503, headers={"X-Should-Retry": "false"}, text="what")],
        "4": [httpx.ConnectError("refused"), httpx.ReadError("")],
    }
    out = tmp_path / "out.jsonl"
    with Results(out) as results:
        await ask(gateway, results)
        assert results.failed == 2
    found = read(out)
    assert gateway.asked["1"] == gateway.asked["4"] == 3
    assert found["line-1"]["response"]["body"] == {"text": "<1>"}
    assert found["line-2"]["response"]["body"]["error"]["message"] == "No."
    assert (found["line-3"]["response"], found["line-3"]["error"]["code"]) == (None, "no_json")


async def test_a_gateway_that_stays_away_ends_the_command(gateway: Gateway, tmp_path: Path) -> None:
    gateway.before = {"5": [httpx.ConnectError("refused")] * 1000}
    out = tmp_path / "out.jsonl"
    with Results(out) as results, pytest.raises(LaunchError, match="refused; started again"):
        await ask(gateway, results, gone_seconds=0)
    gateway.before = {}
    with Results(out) as results:
        await ask(gateway, results)
    assert len(read(out)) == 20


async def test_a_request_that_breaks_off_again_and_again(gateway: Gateway, tmp_path: Path) -> None:
    gateway.before = {"5": [httpx.ReadError("broken")] * 1000}
    with Results(tmp_path / "out.jsonl") as results, pytest.raises(LaunchError, match="broken"):
        await ask(gateway, results)
    assert gateway.asked["5"] == MOST_BROKEN_OFF + 1
