"""A small HTTP server that answers chats with what a test tells it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DONE = "data: [DONE]"


def event(content: str | None = "", **delta: Any) -> str:
    """A line of a stream that adds to an answer."""
    added = {"content": content, **delta}
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": added, "finish_reason": None}]})


class ScriptedGateway:
    """Answers a turn with the next of `answers`: lines of a stream, or a status with a JSON body.

    A threading event among the lines holds the stream until it is set, or until the client has gone.
    """

    def __init__(self) -> None:
        self.answers: list[list[str | threading.Event] | tuple[int, Any]] = []
        self.models = ["quire-tiny", "other"]
        """Those that generate text. It also lists one that does not."""
        self.asked: list[dict[str, Any]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.begin(200)
                listed = [{"id": "encoder", "generates": False}, *({"id": name} for name in gateway.models)]
                self.wfile.write(json.dumps({"data": listed}).encode())

            def do_POST(self) -> None:
                gateway.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                answer = gateway.answers.pop(0)
                if isinstance(answer, tuple):
                    self.begin(answer[0])
                    self.wfile.write(json.dumps(answer[1]).encode())
                    return
                self.begin(200)
                for line in answer:
                    if isinstance(line, threading.Event):
                        line.wait(60)
                    else:
                        self.wfile.write(f"{line}\n\n".encode())

            def begin(self, status: int) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def scripted_gateway() -> Iterator[ScriptedGateway]:
    """A server that runs while the block does."""
    gateway = ScriptedGateway()
    thread = threading.Thread(target=gateway.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield gateway
    finally:
        gateway.server.shutdown()
        gateway.server.server_close()
        thread.join()
