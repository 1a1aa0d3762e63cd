"""OpenVINO GenAI's continuous batching behind as much of the OpenAI API as a load needs.

    python openvino_server.py --model DIR --port P --threads N --dtype bfloat16

It runs in any Python that has the package `openvino-genai`, and needs nothing of Quire. DIR is a model in
OpenVINO's own format. It answers token ids with token ids, as text: nothing is encoded or decoded here, which
is in its favour. Prefix caching is on, as in Quire.
"""

import argparse
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

STEP_TOKENS = 512
"""What Quire's workers take by default."""
PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}


class Engine:
    """The pipeline, stepped by a thread of its own as long as there is something to do."""

    def __init__(self, model: Path, threads: int, dtype: str) -> None:
        settings = openvino_genai.SchedulerConfig()
        settings.max_num_batched_tokens = STEP_TOKENS
        settings.enable_prefix_caching = True
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
            "KV_CACHE_PRECISION": PRECISIONS[dtype],
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), settings, "CPU", properties)
        self._asked: queue.Queue[tuple[list[int], int, queue.Queue[int | None]]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, prompt: list[int], max_tokens: int) -> "queue.Queue[int | None]":
        """Where the answer's tokens will come, and None after the last."""
        answer: queue.Queue[int | None] = queue.Queue()
        self._asked.put((prompt, max_tokens, answer))
        return answer

    def _run(self) -> None:
        running: list[tuple[Any, queue.Queue[int | None]]] = []
        number = 0
        while True:
            while not running or not self._asked.empty():
                prompt, max_tokens, answer = self._asked.get()
                number += 1
                running.append((self._begin(number, prompt, max_tokens), answer))
            self._pipeline.step()
            running = [(handle, answer) for handle, answer in running if not _deliver(handle, answer)]

    def _begin(self, number: int, prompt: list[int], max_tokens: int) -> Any:
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens = max_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        return self._pipeline.add_request(number, openvino.Tensor(np.array([prompt], np.int64)), settings)


def _deliver(handle: Any, answer: "queue.Queue[int | None]") -> bool:
    """Hand on what the last step made; whether it was the end."""
    while handle.can_read():
        for output in handle.read().values():
            for token in output.generated_ids:
                answer.put(token)
    if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
        return False
    answer.put(None)
    return True


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", choices=PRECISIONS, required=True)
    options = parser.parse_args()
    Handler.engine = Engine(options.model, options.threads, options.dtype)
    Handler.model = options.model.name
    Server(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
