"""Waiting for the deployment: it ends when the deployment is ready, or when who waits is cancelled."""

import asyncio
import contextlib

import pytest

from ops.launcher.ready import wait_ready
from ops.launcher.redis_server import free_port


async def test_who_waits_can_be_cancelled_whatever_the_clients_do_with_it() -> None:
    asked, lost = asyncio.Event(), asyncio.Event()

    async def loses_cancellation(_: str) -> None:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        lost.set()

    url = f"http://127.0.0.1:{free_port()}"
    waiting = asyncio.create_task(wait_ready(url, ["m"], loses_cancellation))
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await lost.wait()


async def test_an_error_of_what_is_shown_meanwhile_is_not_lost() -> None:
    async def fails(_: str) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await wait_ready(f"http://127.0.0.1:{free_port()}", ["m"], fails)
