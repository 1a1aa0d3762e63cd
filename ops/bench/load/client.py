"""A lean client for streamed completions of any OpenAI-compatible server; notes when each chunk came."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from ops.bench.load.workload import Question
from ops.runtime.api_keys import authorization


@dataclass
class Answer:
    """When what came. Times are `time.perf_counter` seconds."""

    sent: float
    chunks: list[float] = field(default_factory=list)
    """Arrival of each chunk that carried tokens."""
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def time_to_first_token(self) -> float:
        return self.chunks[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Times between tokens, as the client sees them."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]


class CompletionClient:
    """Sends questions to `url`, each over a connection of its own."""

    def __init__(self, url: str, model: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.model = model

    async def ask(self, question: Question, timeout: float = 600.0) -> Answer:
        """The answer; what goes wrong is in its `error`."""
        loop = asyncio.get_running_loop()
        answer = Answer(sent=time.perf_counter())
        try:
            transport, protocol = await loop.create_connection(lambda: _Stream(answer), self.host, self.port)
        except OSError as error:
            answer.error = str(error)
            return answer
        answer.sent = time.perf_counter()
        transport.write(self._request(question))
        try:
            await asyncio.wait_for(protocol.done, timeout)
        except TimeoutError:
            answer.error = f"no end within {timeout} s"
        finally:
            transport.close()
        answer.ended = time.perf_counter()
        if not answer.error and not answer.chunks:
            answer.error = "no tokens"
        return answer

    def _request(self, question: Question) -> bytes:
        body = json.dumps(
            {
                "model": self.model,
                "prompt": question.prompt,
                "max_tokens": question.max_tokens,
                "temperature": 0.0,
                "top_p": 1,  # given, because a model may have a default of its own
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        key = "".join(f"{name}: {value}\r\n" for name, value in authorization().items())
        return f"{head}{key}\r\n".encode() + body


class _Stream(asyncio.Protocol):
    """Parses one response into an answer."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parser = httptools.HttpResponseParser(self)
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.answer.error = self.answer.error or str(error or "connection closed")
            self.done.set_result(None)

    def on_body(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.parser.get_status_code() != 200:
            self.answer.error += data.decode(errors="replace")
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._event(json.loads(line[6:]), now)

    def on_message_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _event(self, event: dict[str, object], now: float) -> None:
        if "error" in event:
            self.answer.error = str(event["error"])
        if event.get("choices"):
            self.answer.chunks.append(now)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.answer.prompt_tokens = usage["prompt_tokens"]
            self.answer.output_tokens = usage["completion_tokens"]
