"""Which jobs a gateway works at."""

import asyncio

from gateway.http.own_requests import OwnRequests
from gateway.jobs.jobs import Jobs
from tests.unit.gateway.conftest import app_of, stores_of


async def test_without_a_place_for_them_there_are_none(backend, stores):
    jobs = Jobs(OwnRequests(app_of(backend)))
    assert jobs.background(None, stores.background) is None
    assert jobs.background(stores.responses, stores.background) is not None


async def test_a_gateway_without_jobs_runs_until_it_is_stopped(backend):
    running = asyncio.create_task(app_of(backend, stores=stores_of()).state.jobs.run())
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


async def test_who_drains_takes_nothing(fleet):
    gateway, taken = await fleet.start(), fleet.tokenizer.requests
    gateway.app.state.jobs.drain()
    made = await gateway.client.responses.create(model="m", input="A fox?", background=True)
    await gateway.stop()
    assert taken == []
    assert (await gateway.client.responses.retrieve(made.id)).status == "queued"
