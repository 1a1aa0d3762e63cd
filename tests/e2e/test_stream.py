"""The WebSocket of a whole deployment: answers are those of HTTP."""

import json
from typing import Any

import httpx
from websockets.sync.client import connect

from tests.support.deployment import Deployment


def test_answers_on_a_socket_are_those_of_http(deployment: Deployment) -> None:
    def body(seed: int) -> dict[str, Any]:
        own = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 1.0, "seed": seed}
        return {"model": deployment.model_name, **own}

    url = f"{deployment.url}/v1/completions"
    expected = {
        str(seed): httpx.post(url, json=body(seed), timeout=60).json()["choices"][0]["text"]
        for seed in range(4)
    }
    texts = dict.fromkeys(expected, "")
    with connect(f"ws{deployment.url.removeprefix('http')}/v1/stream", proxy=None) as socket:
        for seed in range(4):
            asked = {"path": "/v1/completions", "body": body(seed) | {"stream": True}}
            socket.send(json.dumps({"type": "request", "id": str(seed), **asked}))
        under_way = set(texts)
        while under_way:
            message = json.loads(socket.recv(timeout=60))
            if message["type"] == "end":
                under_way.remove(message["id"])
            else:
                texts[message["id"]] += message["data"]["choices"][0]["text"]
    assert texts == expected
