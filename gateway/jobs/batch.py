"""Works at batches: looks through the input, then asks for line after line, some at once.

Each result is written with a mark that its line is done, in one step. So whoever goes on with a batch leaves
out the lines that have results, and no line has two.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from pydantic_core import from_json

from gateway.api.batches.batches import ENDED
from gateway.errors import BadRequest, Overloaded, Unavailable
from gateway.http.body_memory import MAX_BODY_BYTES
from gateway.http.counts import check_counts
from gateway.http.json_text import text_of, value_of
from gateway.http.own_requests import OwnRequests
from gateway.jobs.background import MOST_TAKES
from gateway.parsing import parsed
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.job_queue import Job

MAX_LINES = 50_000
MAX_ID = 512
"""Characters of a line's custom_id. All of a batch are known at once."""
MAX_PROBLEMS = 100
"""Wrong lines of the input that a batch names."""
DEFAULTS = {"user": "batch", "store": False}
"""Fields of a request that its line does not give. The user is one of the tenant's. Responses are not stored:
so many would leave no room for those that the tenant goes on with."""

Json = dict[str, Any]


class BadLine(Exception):
    """A line of the input that is no request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


class ByteSemaphore:
    """Lets in, in their order, whatever has `most` bytes together; and what has more, alone."""

    def __init__(self, most: int) -> None:
        self._most, self.used = most, 0
        self._first = asyncio.Lock()
        self._freed = asyncio.Event()

    async def acquire(self, size: int) -> None:
        """Wait for room, behind those that wait already."""
        async with self._first:
            while self.used and self.used + size > self._most:
                self._freed.clear()
                await self._freed.wait()
            self.used += size

    def release(self, size: int) -> None:
        """Of what was let in these bytes are gone."""
        self.used -= size
        self._freed.set()


class BatchWork:
    """What the runner of batches does."""

    def __init__(
        self, own: OwnRequests, store: BatchStore, at_once: int, clock: Callable[[], float] = time.time
    ) -> None:
        """`at_once`: lines of one batch that are asked at once. `clock`: Unix time, seconds."""
        self._own, self._store, self._at_once, self._clock = own, store, at_once, clock
        self._asked_bytes = ByteSemaphore(MAX_BODY_BYTES)
        """Of the lines of all batches that are asked at once."""
        self._draining = False

    def drain(self) -> None:
        """Begin no more lines."""
        self._draining = True

    async def work(self, job: Job) -> None:
        """Work at a batch until it has ended. Raises `LeaseLost` and `Unavailable`."""
        batch = await self._store.get(job.tenant, job.id)
        if batch is None or batch["status"] in ENDED:
            return
        if job.takes > MOST_TAKES:
            await self._fail(
                job, batch, [_problem("server_error", "One gateway after the other has died of it.")]
            )
            return
        if batch["status"] == "validating":
            total, problems = await self._look_through(job.tenant, batch)
            if problems:
                await self._fail(job, batch, problems)
                return
            batch["request_counts"]["total"] = total
            await self._put(job, batch, "in_progress")
        try:
            await self._answer(job, batch)
        except Overloaded as error:
            await self._fail(job, batch, [_problem("insufficient_storage", error.message)])
        except BadLine as error:
            await self._fail(job, batch, [_problem(error.code, error.message)])

    async def _look_through(self, tenant: str, batch: Json) -> tuple[int, list[Json]]:
        """The number of lines, and what is wrong with them."""
        number, problems, known = 0, list[Json](), set[str]()
        async with aclosing(self._store.files.lines(tenant, batch["input_file_id"])) as lines:
            async for place, line in lines:
                number += 1
                try:
                    custom_id = (await _parsed(tenant, line, batch["endpoint"]))["custom_id"]
                    if custom_id in known:
                        message = f"The custom_id '{custom_id[:100]}' is not unique."
                        raise BadLine("duplicate_custom_id", message, "custom_id")
                    known.add(custom_id)
                except BadLine as error:
                    problems.append(_problem(error.code, error.message, error.param, place))
                if number > MAX_LINES:
                    problems.append(_problem("too_many_lines", f"A batch has at most {MAX_LINES} lines."))
                if len(problems) >= MAX_PROBLEMS or number > MAX_LINES:
                    break
        if not number:
            problems.append(_problem("empty_file", "The input file has no lines, or is gone."))
        return number, problems

    async def _answer(self, job: Job, batch: Json) -> None:
        """Give each line its result. Raises `Overloaded` if one has no room, and `BadLine`."""
        try:
            async with asyncio.timeout(max(0.0, batch["expires_at"] - self._clock())):
                await self._ask_all(job, batch)
            batch["finalizing_at"] = int(self._clock())
            await self._put(job, batch, "completed")
        except TimeoutError:
            await self._expire(job, batch)

    async def _ask_all(self, job: Job, batch: Json) -> None:
        """Ask all lines without a result."""
        done = await self._store.done(job.tenant, job.id)
        free = asyncio.Semaphore(self._at_once)

        async def ask(number: int, line: bytes) -> None:
            outcome, result = await self._ask(job, batch["endpoint"], line)
            await self._store.add_result(job.tenant, batch, job.lease, number, outcome, result)

        def end(size: int, _: object) -> None:
            free.release()
            self._asked_bytes.release(size)

        number = 0
        try:
            async with (
                asyncio.TaskGroup() as tasks,
                aclosing(self._store.files.lines(job.tenant, batch["input_file_id"])) as lines,
            ):
                async for _, line in lines:
                    if not _has(done, number):
                        await free.acquire()
                        await self._asked_bytes.acquire(len(line))
                        if self._draining:
                            self._asked_bytes.release(len(line))
                            break
                        # Not in `ask`: a task that is cancelled before it begins runs none of it.
                        tasks.create_task(ask(number, line)).add_done_callback(partial(end, len(line)))
                    number += 1
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if self._draining:
            raise Unavailable("The gateway is stopping.")
        if number < batch["request_counts"]["total"]:
            raise BadLine("missing_file", "The input file is gone.")

    async def _ask(self, job: Job, endpoint: str, line: bytes) -> tuple[str, bytes]:
        """The outcome of a line, and its result."""
        request = await _parsed(job.tenant, line, endpoint)
        body = await parsed(job.tenant, len(line), lambda: text_of(DEFAULTS | request["body"]))
        while True:
            async with self._own.ask(endpoint, body, job.behalf, {"late": True}) as reply:
                if (wait := reply.again_in) is None:
                    answer = from_json(await reply.read())
                    break
            await asyncio.sleep(wait)
        response = {
            "status_code": reply.status,
            "request_id": reply.headers.get("x-request-id", ""),
            "body": answer,
        }
        return "completed" if reply.status == 200 else "failed", _result(request["custom_id"], response, None)

    async def _expire(self, job: Job, batch: Json) -> None:
        """Lines that were not answered in time fail."""
        done, number = await self._store.done(job.tenant, job.id), 0
        error = {"code": "batch_expired", "message": "The batch expired before this request was answered."}
        async with aclosing(self._store.files.lines(job.tenant, batch["input_file_id"])) as lines:
            async for _, line in lines:
                if not _has(done, number):
                    result = _result(
                        (await _parsed(job.tenant, line, batch["endpoint"]))["custom_id"], None, error
                    )
                    await self._store.add_result(job.tenant, batch, job.lease, number, "failed", result)
                number += 1
        await self._put(job, batch, "expired")

    async def _fail(self, job: Job, batch: Json, problems: list[Json]) -> None:
        batch["errors"] = {"object": "list", "data": problems}
        await self._put(job, batch, "failed")

    async def _put(self, job: Job, batch: Json, status: str) -> None:
        batch |= {"status": status, f"{status}_at": int(self._clock())}
        await self._store.put(job.tenant, batch, job.lease)


async def _parsed(tenant: str, line: bytes, endpoint: str) -> Json:
    """A line of the tenant's as a request. Raises `BadLine`."""
    if len(line) > MAX_BODY_BYTES:
        raise BadLine("line_too_long", f"A line has at most {MAX_BODY_BYTES // 2**20} MiB.")
    request = await parsed(tenant, len(line), lambda: _json_of(line))
    if not isinstance(request, dict):
        raise BadLine("invalid_json_line", "This line is not a JSON object.")
    if not isinstance(request.get("custom_id"), str):
        raise BadLine("missing_required_parameter", "There is no 'custom_id' that is a text.", "custom_id")
    if len(request["custom_id"]) > MAX_ID:
        raise BadLine("invalid_value", f"A 'custom_id' has at most {MAX_ID} characters.", "custom_id")
    if request.get("method") != "POST":
        raise BadLine("invalid_method", "'method' must be POST.", "method")
    if request.get("url") != endpoint:
        raise BadLine("mismatched_url", f"'url' must be the batch's endpoint, {endpoint}.", "url")
    body = request.get("body")
    if not isinstance(body, dict):
        raise BadLine("missing_required_parameter", "There is no 'body' that is an object.", "body")
    for name in ("stream", "background"):
        if body.get(name):
            raise BadLine("invalid_value", f"'{name}' does not go with a batch.", f"body.{name}")
    return request


def _json_of(line: bytes) -> Any:
    """What a line says. Raises `BadLine`."""
    try:
        check_counts(line)
        return value_of(line)
    except BadRequest as error:
        raise BadLine("invalid_value", error.message) from None
    except ValueError as error:
        raise BadLine("invalid_json_line", f"This line is not valid JSON: {error}.") from None


def _has(done: bytes, number: int) -> bool:
    """Whether a bit is set, as Redis counts them."""
    place, bit = divmod(number, 8)
    return place < len(done) and bool(done[place] >> (7 - bit) & 1)


def _result(custom_id: str, response: Json | None, error: Json | None) -> bytes:
    fields = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _problem(code: str, message: str, param: str | None = None, line: int | None = None) -> Json:
    return {"code": code, "message": message, "param": param, "line": line}
