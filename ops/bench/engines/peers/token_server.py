"""An engine that computes steps, behind as much of the OpenAI API as a load needs.

It answers token ids with token ids, as text: nothing is encoded or decoded, which is in the engine's favour.
For engines whose packages have no server. Runs in any Python, without what Quire needs: peers have virtual
environments of their own.
"""

import json
import os
import queue
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

STEP_TOKENS = 512
"""Tokens of a step, at most: what Quire's workers take by default."""

Answer = queue.Queue[int | None]
"""Tokens of an answer as they come, and None after the last."""


class Batch(Protocol):
    """An engine with its running requests. One thread makes all calls."""

    @property
    def running(self) -> int:
        """Number of requests that have no end yet."""

    def add(self, prompt: list[int], max_tokens: int, answer: Answer) -> None:
        """Take a request in: the most likely token each time, and no end but the length."""

    def step(self) -> None:
        """Compute one step of the running requests, and put what it brings into their answers."""


class Engine:
    """A batch, stepped by a thread of its own as long as there is something to do."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._asked: queue.Queue[tuple[list[int], int, Answer]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, prompt: list[int], max_tokens: int) -> Answer:
        """Where the answer's tokens will come."""
        answer: Answer = queue.Queue()
        self._asked.put((prompt, max_tokens, answer))
        return answer

    def _run(self) -> None:
        try:
            while True:
                while not self._batch.running or not self._asked.empty():
                    self._batch.add(*self._asked.get())
                self._batch.step()
        except BaseException:  # nobody would answer any more
            traceback.print_exc()
            os._exit(1)


class Handler(BaseHTTPRequestHandler):
    """`GET /v1/models` and streamed `POST /v1/completions` of token ids."""

    protocol_version = "HTTP/1.1"
    engine: Engine
    model: str

    def do_GET(self) -> None:
        payload = json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.engine.ask(body["prompt"], body["max_tokens"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = 0
        while (token := answer.get()) is not None:
            count += 1
            self._event({"choices": [{"index": 0, "text": f"{token} "}]})
        self._event(
            {"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}}
        )
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: a load makes many."""


class Server(ThreadingHTTPServer):
    """Takes all connections of a load at once: the default is to refuse those beyond a few."""

    request_queue_size = 1024
    daemon_threads = True


def server(batch: Batch, model: str, port: int) -> Server:
    """A server of one engine at 127.0.0.1, bound. `model`: its name. `port`: 0 takes a free one."""
    handler = type("BoundHandler", (Handler,), {"engine": Engine(batch), "model": model})
    return Server(("127.0.0.1", port), handler)
