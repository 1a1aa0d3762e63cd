"""Asks the requests of a file, some at once, and writes each result as it comes."""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ops.cli.batch.lines import Line, Results, lines_of
from ops.runtime.api_keys import authorization
from ops.runtime.errors import LaunchError

TIMEOUT = httpx.Timeout(10.0, read=None)
"""Seconds. An answer takes as long as the gateway lets it."""
GONE_SECONDS = 120.0
"""Time for which a gateway may be away, such as while it is started again."""
AGAIN_SECONDS = 0.5
MOST_BROKEN_OFF = 5
"""Answers to one request that may be broken off."""
LATER = (429, 503)
"""Statuses of requests that may be answered later."""

Json = dict[str, Any]


class Asker:
    """Asks one gateway."""

    def __init__(self, client: httpx.AsyncClient, gone_seconds: float = GONE_SECONDS) -> None:
        self._client = client
        self._gone_seconds = gone_seconds

    async def model(self) -> str:
        """The model of requests that name none: the first that generates text, or else the first of all.

        Raises `LaunchError`."""
        answer = await self._reached("GET", "/v1/models")
        try:
            listed = answer.raise_for_status().json()["data"]
            return str(next((one for one in listed if one.get("generates", True)), listed[0])["id"])
        except (httpx.HTTPStatusError, ValueError, LookupError, TypeError, AttributeError):
            raise LaunchError(f"{self._client.base_url} offers no model: {answer.text[:500]}") from None

    async def result(self, line: Line, model: str) -> Json:
        """The result of a request, as OpenAI's batches have it. Raises `LaunchError`."""
        while True:
            answer = await self._reached("POST", line.url, {"model": model} | line.body)
            if answer.status_code not in LATER or answer.headers.get("x-should-retry") == "false":
                break
            wait = answer.headers.get("retry-after", "")
            await asyncio.sleep(float(wait) if wait.isdecimal() else 1.0)
        response: Json | None = None
        error = None
        try:
            response = {
                "status_code": answer.status_code,
                "request_id": answer.headers.get("x-request-id", ""),
                "body": answer.json(),
            }
        except ValueError:
            error = {"code": "no_json", "message": f"The answer with status {answer.status_code} is no JSON."}
        result = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line.custom_id}
        return result | {"response": response, "error": error}

    async def _reached(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        """An answer. Where no gateway is, one may come back."""
        clock = asyncio.get_running_loop().time
        gone: float | None = None
        broken_off = 0
        content = None if body is None else json.dumps(body)  # ASCII: half a character is escaped
        headers = None if body is None else {"Content-Type": "application/json"}
        while True:
            try:
                return await self._client.request(method, path, content=content, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                gone, reason = gone or clock(), str(error)
            except httpx.TransportError as error:  # its gateway has died
                gone, reason, broken_off = None, str(error) or "it broke off", broken_off + 1
            if broken_off > MOST_BROKEN_OFF or (gone and clock() - gone > self._gone_seconds):
                why = f"{str(self._client.base_url).rstrip('/')} does not answer: {reason}"
                raise LaunchError(f"{why}; started again, this command goes on")
            await asyncio.sleep(AGAIN_SECONDS)


async def ask_all(
    lines: Iterator[Line], results: Results, asker: Asker, at_once: int, done: Callable[[], None]
) -> None:
    """Ask all requests that have no result. `done` is called after each. Raises `LaunchError`."""
    free = asyncio.Semaphore(at_once)
    model = await asker.model()

    async def ask(line: Line) -> None:
        try:
            results.add(await asker.result(line, model))
            done()
        finally:
            free.release()

    try:
        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                if line.custom_id not in results.known:
                    await free.acquire()
                    tasks.create_task(ask(line))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def answer_file(given: Path, out: Path, url: str, at_once: int) -> int:
    """Answer the requests of the file `given` into the file `out`, with a progress bar in a terminal.

    Returns the exit status. Raises `LaunchError`.
    """
    ids = [line.custom_id for line in lines_of(given)]  # all of it is looked through first
    with Results(out) as results, _bar() as bar:
        before = len(results.known.intersection(ids))
        task = bar.add_task(given.name, total=len(ids), completed=before)

        async def run() -> None:
            async with httpx.AsyncClient(
                base_url=url,
                headers=authorization(),
                timeout=TIMEOUT,
                trust_env=False,
                limits=httpx.Limits(max_connections=at_once),
            ) as client:
                await ask_all(lines_of(given), results, Asker(client), at_once, lambda: bar.advance(task))

        if before < len(ids):
            asyncio.run(run())
        failed = results.failed
    earlier = f", {before} of them before" if before else ""
    wrong = f"; {failed} have failed" if failed else ""
    print(f"{len(ids)} requests are answered{earlier}{wrong}: {out}", file=sys.stderr)
    return 1 if failed else 0


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)
