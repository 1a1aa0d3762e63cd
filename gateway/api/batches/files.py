"""/v1/files: what clients upload for batches, and what batches write."""

import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Send

from gateway.api.batches.schema import DeletedFile, FileList, FileObject, UploadBody
from gateway.api.common.answers import Json, compact
from gateway.api.common.listing import answer_page, parameters
from gateway.errors import BadRequest, GatewayError, NotFound, Unauthorized
from gateway.http.caller import caller_of
from gateway.http.multipart import Form
from gateway.http.openapi import getting, uploading
from gateway.upstream.file_store import PIECE_BYTES, UPLOAD_SECONDS, FileStore

logger = logging.getLogger(__name__)

EXPIRY_SECONDS = (3600, 30 * 86400)
"""The least and the most of `expires_after`."""
MAX_LISTED = 10_000
"""Files of one page, by default too, as with OpenAI. Who deletes each file of a list needs no second page:
what that is to begin behind would be gone."""
PURPOSE = "batch"


def router(store: FileStore, most: int) -> APIRouter:
    """`most`: bytes of one file."""
    routes = APIRouter()

    async def found(request: Request, file_id: str) -> Json:
        about = await store.get(caller_of(request).tenant, file_id)
        if about is None:
            raise _missing(file_id)
        return about

    @routes.post("/v1/files", openapi_extra=uploading(UploadBody, FileObject))
    async def create_file(request: Request) -> Response:
        """Upload a file with requests for a batch: a form with `purpose` and `file`."""
        tenant, now = caller_of(request).tenant, int(time.time())
        about = {"id": f"file-{uuid.uuid4().hex}", "object": "file", "created_at": now, "status": "processed"}
        about |= {"filename": "", "purpose": PURPOSE, "expires_at": now + UPLOAD_SECONDS}
        await store.put(tenant, about, listed=False)
        try:
            form = Form("file", most)
            async with aclosing(form.read(request)) as pieces:
                size = await _store(store, tenant, str(about["id"]), pieces)
            now = int(time.time())
            about |= {"filename": form.filename or "upload.jsonl", "created_at": now}
            about["expires_at"] = now + _seconds(form.fields, store.seconds)
            await store.put(tenant, about)
        except BaseException:
            await store.delete(tenant, str(about["id"]))
            raise
        return _json(about | {"bytes": size})

    listing = {"parameters": parameters(MAX_LISTED, MAX_LISTED)}

    @routes.get("/v1/files", openapi_extra=getting(FileList, Unauthorized) | listing)
    async def list_files(request: Request) -> Response:
        """The caller's files."""
        tenant, purpose = caller_of(request).tenant, request.query_params.get("purpose")

        read: dict[str, Json] = {}

        async def ids(after: str | None, newest_first: bool) -> AsyncGenerator[str, None]:
            found = store.files(tenant, purpose, after, newest_first, request.state.body.grow)
            async with aclosing(found) as files:
                async for one in files:
                    read[one["id"]] = one
                    yield one["id"]

        async def wanted(file_id: str) -> Json:
            return read.pop(file_id)

        return await answer_page(request, ids, wanted, MAX_LISTED, MAX_LISTED)

    @routes.get("/v1/files/{file_id}", openapi_extra=getting(FileObject, Unauthorized, NotFound))
    async def retrieve_file(request: Request, file_id: str) -> Response:
        """What is known of a file."""
        return _json(await found(request, file_id))

    @routes.get("/v1/files/{file_id}/content", openapi_extra=_content())
    async def retrieve_file_content(request: Request, file_id: str) -> Response:
        """What is in a file, so far if a batch still writes it."""
        about = await found(request, file_id)
        request.state.body.grow(PIECE_BYTES)  # the one that the client has not taken yet
        pieces = _first(store.pieces(caller_of(request).tenant, about["id"]), about["bytes"])
        length = {"Content-Length": str(about["bytes"])}
        return _Content(pieces, headers=length, media_type="application/octet-stream")

    @routes.delete("/v1/files/{file_id}", openapi_extra=getting(DeletedFile, Unauthorized, NotFound))
    async def delete_file(request: Request, file_id: str) -> Response:
        """Delete a file."""
        if not await store.delete(caller_of(request).tenant, file_id):
            raise _missing(file_id)
        return _json({"id": file_id, "object": "file", "deleted": True})

    return routes


class _Content(StreamingResponse):
    """What is in a file. When an error comes it has begun: the connection ends before the answer does, so
    that the client does not take a part for the whole."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except GatewayError as error:
            logger.warning("a file could not be sent to its end: %s", error.message)


async def _store(store: FileStore, tenant: str, file_id: str, pieces: AsyncGenerator[bytes, None]) -> int:
    """Store a file as it comes. Returns its bytes. Raises `Overloaded` and what `pieces` raise, too."""
    size, held = 0, bytearray()
    async for piece in pieces:
        size += len(piece)
        held += piece
        while len(held) >= PIECE_BYTES:
            await store.append(tenant, file_id, [bytes(held[:PIECE_BYTES])])
            del held[:PIECE_BYTES]
    if held:
        await store.append(tenant, file_id, [bytes(held)])
    if not size:
        raise BadRequest("'file' is empty.", param="file", code="invalid_value")
    return size


async def _first(pieces: AsyncGenerator[bytes, None], size: int) -> AsyncGenerator[bytes, None]:
    """The first `size` bytes: a batch may write more. Raises `NotFound` if there are fewer."""
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece[:size]
            size -= len(piece)
            if size <= 0:
                return
    if size > 0:
        raise NotFound("The file was deleted while it was read.", param="id")


def _seconds(fields: dict[str, str], usual: int) -> int:
    """How long an uploaded file is kept. Raises `BadRequest` for this and all other fields."""
    if fields.get("purpose") != PURPOSE:
        message = f"'purpose' must be '{PURPOSE}': files for other purposes are not kept."
        raise BadRequest(message, param="purpose", code="invalid_value")
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if seconds is None and anchor is None:
        return usual
    return expiry(anchor, int(seconds) if seconds and seconds.isdecimal() and len(seconds) < 9 else 0)


def expiry(anchor: object, seconds: int, param: str = "expires_after") -> int:
    """Seconds of an `expires_after`. Raises `BadRequest`."""
    least, most = EXPIRY_SECONDS
    if anchor != "created_at" or not least <= seconds <= most:
        message = f"'{param}' has the anchor 'created_at', and seconds in [{least}, {most}]."
        raise BadRequest(message, param=param, code="invalid_value")
    return seconds


def _content() -> Json:
    operation = getting(FileObject, Unauthorized, NotFound)
    operation["responses"]["200"]["content"] = {
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
    }
    return operation


def _missing(file_id: str) -> GatewayError:
    return NotFound(f"No such File object: {file_id[:100]}", param="id")


def _json(value: Json) -> Response:
    return Response(compact(value), media_type="application/json")
