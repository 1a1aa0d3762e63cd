"""Background responses and batches go on when gateways are killed, as if nothing had happened."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ops.cli.main import main
from ops.launcher.deployments import recorded
from ops.launcher.redis_server import RedisServer
from tests.support.asking import attempts
from tests.support.deployment import Deployment, running

ASK: dict[str, Any] = {
    "model": "quire-tiny",
    "input": "Tell me a long story about a fox and an owl.",
    "temperature": 0,
    "max_output_tokens": 600,
}
MINUTE = 60.0


@pytest.fixture(scope="module")
def killed(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from running(redis_server, tmp_path_factory.mktemp("killed"))


def client_of(deployment: Deployment) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=20, timeout=MINUTE)


def test_a_response_and_its_stream_go_on_when_the_gateway_is_killed(killed: Deployment) -> None:
    client = client_of(killed)
    expected = client.responses.create(**ASK)
    for attempt in attempts():
        seen, text = -1, ""
        conversation = client.conversations.create()
        asked = {**ASK, "conversation": conversation.id}
        with client.responses.create(**asked, background=True, stream=True) as stream:
            for event in stream:
                seen = event.sequence_number
                if event.type == "response.created":
                    made = event.response
                if event.type == "response.output_text.delta":
                    text += event.delta
                    break
        killed.kill("gateway")
        killed.spawn("gateway")
        killed.wait_ready()
        begun = client.responses.retrieve(made.id)
        attempt.hit = begun.status == "in_progress"
        for event in client.responses.retrieve(made.id, stream=True, starting_after=seen):
            assert event.sequence_number == seen + 1
            seen = event.sequence_number
            if event.type == "response.output_text.delta":
                text += event.delta
        assert event.type == f"response.{expected.status}"
        assert text == expected.output_text
        found = client.responses.retrieve(made.id)
        assert (found.status, found.output_text) == (expected.status, expected.output_text)
        question, answer = client.conversations.items.list(conversation.id, order="asc")
        assert (question.content[0].text, answer.content[0].text) == (ASK["input"], text), "each once"


def test_a_response_is_cancelled_at_another_gateway(killed: Deployment) -> None:
    client = client_of(killed)
    made = client.responses.create(**ASK | {"input": "Count for ever."}, background=True)
    assert client.responses.cancel(made.id).status in ("cancelled", "completed", "incomplete")
    until = time.monotonic() + MINUTE
    while (found := client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < until
    assert found.status == client.responses.cancel(made.id).status


def test_a_batch_goes_on_when_the_gateway_is_killed(killed: Deployment) -> None:
    """Every line is answered once, with what it is answered alone."""
    client = client_of(killed)
    bodies = {
        f"line-{number}": {
            "model": "quire-tiny",
            "prompt": f"Once upon a time, {number} foxes",
            "max_tokens": 100,
            "temperature": 0,
            "ignore_eos": True,
        }
        for number in range(60)
    }
    alone = {
        name: client.post("/completions", body=bodies[name], cast_to=openai.types.Completion).choices[0].text
        for name in list(bodies)[::20]
    }
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})
        for name, body in bodies.items()
    ]
    given = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    answers: dict[str, str] = {}
    for attempt in attempts():
        batch = client.batches.create(
            input_file_id=given.id, endpoint="/v1/completions", completion_window="24h"
        )
        until = time.monotonic() + MINUTE
        while (found := client.batches.retrieve(batch.id)).request_counts is None or (
            found.request_counts.completed < 5
        ):
            assert time.monotonic() < until
        killed.kill("gateway")
        killed.spawn("gateway")
        killed.wait_ready()
        at_kill = client.batches.retrieve(batch.id).status
        until = time.monotonic() + 2 * MINUTE
        while (found := client.batches.retrieve(batch.id)).status == "in_progress":
            assert time.monotonic() < until
            time.sleep(0.1)
        assert (found.status, found.error_file_id) == ("completed", None)
        assert found.output_file_id is not None
        results = list(map(json.loads, client.files.content(found.output_file_id).text.splitlines()))
        assert sorted(one["custom_id"] for one in results) == sorted(bodies)
        texts = {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in results}
        assert texts | alone == texts
        assert not answers or answers == texts
        answers = texts
        attempt.hit = at_kill == "in_progress"


def file_of(directory: Path) -> Path:
    """Three requests, the last of which cannot be answered."""
    body = {"prompt": "Once upon a time", "max_tokens": 8}
    bodies = (body, body | {"max_tokens": 4}, body | {"max_tokens": -2})
    lines = [
        json.dumps({"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": one})
        for number, one in enumerate(bodies)
    ]
    (directory / "in.jsonl").write_text("\n".join(lines))
    return directory / "in.jsonl"


def statuses(path: Path) -> dict[str, int]:
    results = map(json.loads, path.read_text().splitlines())
    return {one["custom_id"]: one["response"]["status_code"] for one in results}


def test_a_file_is_answered_on_the_command_line(
    killed: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = file_of(tmp_path), tmp_path / "out.jsonl"
    for said in ("3 requests are answered; 1 have failed", "3 requests are answered, 3 of them before"):
        assert main(["batch", str(given), str(out), "--url", killed.url]) == 1
        assert said in capsys.readouterr().err
        assert statuses(out) == {"0": 200, "1": 200, "2": 400}


def test_where_nothing_runs_it_starts_a_deployment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("QUIRE_REDIS_URL", raising=False)
    monkeypatch.setenv("QUIRE_KV_MEMORY", "64MiB")
    given, out = file_of(tmp_path), tmp_path / "out.jsonl"
    assert main(["batch", str(given), str(out)]) == 1
    assert statuses(out) == {"0": 200, "1": 200, "2": 400}
    assert recorded() == [], "it has ended with the command"
