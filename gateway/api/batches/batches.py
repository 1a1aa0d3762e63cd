"""/v1/batches: requests out of a file. Any gateway makes them: see `gateway.jobs.batch`."""

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.batches.files import expiry
from gateway.api.batches.schema import BatchBody, BatchList, BatchObject
from gateway.api.common.answers import Json, compact
from gateway.api.common.body import read_body
from gateway.api.common.listing import PARAMETERS, answer_page
from gateway.errors import BadRequest, NotFound, Unauthorized
from gateway.http.caller import caller_of
from gateway.http.openapi import getting, posting
from gateway.upstream.batch_store import DAY, BatchStore
from gateway.upstream.job_queue import JobQueue, LeaseLost

ENDED = ("completed", "failed", "expired", "cancelled")
"""Statuses of batches that do not change any more."""


@dataclass(frozen=True)
class Batches:
    """Where batches are kept."""

    store: BatchStore
    queue: JobQueue
    wake: Callable[[], None]
    """Tells this gateway's runner of a new one."""

    async def create(self, request: Request, asked: BatchBody) -> Json:
        """A new batch. Raises `GatewayError`."""
        caller = caller_of(request)
        file = await self.store.files.get(caller.tenant, asked.input_file_id)
        if file is None or file["purpose"] != "batch":
            message = f"'input_file_id': there is no file '{asked.input_file_id}' for batches."
            raise BadRequest(message, param="input_file_id", code="invalid_value")
        batch = _new(asked, self.store.files.seconds)
        await self.store.put(caller.tenant, batch)
        try:
            await self.queue.add(batch["id"], caller.behalf)
        except BaseException:
            await self.store.delete(caller.tenant, batch["id"])
            raise
        self.wake()
        return batch

    async def cancel(self, tenant: str, batch: Json) -> Json:
        """End a batch; the batch as it is then. Requests that are under way are given up."""
        if batch["status"] not in ENDED and (job := await self.queue.seize(batch["id"], tenant)):
            # From here on nobody else writes. It may have ended just before.
            batch = await self.store.get(tenant, batch["id"]) or batch
            if batch["status"] not in ENDED:
                now = int(time.time())
                batch |= {"status": "cancelled", "cancelling_at": now, "cancelled_at": now}
                with suppress(LeaseLost):  # somebody else cancels it, too
                    await self.store.put(tenant, batch, job.lease)
            await self.queue.end(job)
        return batch


def router(batches: Batches) -> APIRouter:
    routes, store = APIRouter(), batches.store

    async def found(request: Request, batch_id: str) -> Json:
        batch = await store.get(caller_of(request).tenant, batch_id)
        if batch is None:
            raise NotFound(f"No batch found with id '{batch_id[:100]}'.", param="id")
        return batch

    @routes.post("/v1/batches", openapi_extra=posting(BatchBody, BatchObject))
    async def create_batch(request: Request) -> Response:
        """Have the requests of a file answered."""
        return _json(_shown(await batches.create(request, await read_body(request, BatchBody))))

    @routes.get("/v1/batches", openapi_extra=getting(BatchList, Unauthorized) | {"parameters": PARAMETERS})
    async def list_batches(request: Request) -> Response:
        """The caller's batches."""
        tenant = caller_of(request).tenant

        async def wanted(batch_id: str) -> Json | None:
            batch = await store.get(tenant, batch_id)
            return _shown(batch) if batch else None

        return await answer_page(request, partial(store.ids, tenant), wanted)

    @routes.get("/v1/batches/{batch_id}", openapi_extra=getting(BatchObject, Unauthorized, NotFound))
    async def retrieve_batch(request: Request, batch_id: str) -> Response:
        """A batch, and how far it is."""
        return _json(_shown(await found(request, batch_id)))

    @routes.post("/v1/batches/{batch_id}/cancel", openapi_extra=getting(BatchObject, Unauthorized, NotFound))
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """End a batch. What has been answered stays."""
        batch = await found(request, batch_id)
        return _json(_shown(await batches.cancel(caller_of(request).tenant, batch)))

    return routes


def _new(asked: BatchBody, file_seconds: int) -> Json:
    now, after = int(time.time()), asked.output_expires_after
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": f"batch_{uuid.uuid4().hex}",
        "object": "batch",
        "endpoint": asked.endpoint,
        "errors": None,
        "input_file_id": asked.input_file_id,
        "completion_window": asked.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": now + DAY,
        **{f"{name}_at": None for name in times},
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "metadata": asked.metadata,
        "output_seconds": file_seconds if after is None else expiry(after.anchor, after.seconds),
    }


def _shown(batch: Json) -> Json:
    """A batch as clients see it."""
    return {name: batch[name] for name in BatchObject.model_fields}


def _json(value: Json) -> Response:
    return Response(compact(value), media_type="application/json")
