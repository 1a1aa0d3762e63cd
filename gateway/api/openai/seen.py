"""The images of a request that its model gets to see."""

from collections.abc import Sequence

from fastapi import Request
from opentelemetry import trace

from gateway.api.common.body import note
from gateway.api.generation.schema import GenerationBody
from gateway.api.messages.images import addresses, check_image, left_out, left_unfetched, taken_out
from gateway.errors import BadRequest
from gateway.http.body_memory import MAX_BODY_BYTES, Held
from gateway.http.connection import while_connected
from gateway.upstream.fetched_images import Found, ImageFetcher, NotFetched
from gateway.upstream.generator import Generator
from gateway.upstream.images import NO_IMAGES, Images
from proto.tokenizer_pb2 import TextRequest

_tracer = trace.get_tracer("quire.gateway")


async def images_of(
    request: Request, generator: Generator, body: GenerationBody, requests: Sequence[TextRequest]
) -> Images:
    """The images of `requests`, from whose texts they are taken out.

    Those of tools that the model cannot see, or that are too many, are left out, and noted as ignored; so are
    earlier ones that cannot be fetched. Raises `GatewayError`, and `Disconnected` if the client leaves.
    """
    if not body.has_images:
        return NO_IMAGES
    strict: bool = request.app.state.strict_fields
    if not strict and await left_out(requests, await generator.sees_images(body.model)):
        note(request, "tool_result.image")
    if not (urls := await addresses(requests)):
        return await taken_out(requests)
    found = await _fetched(request, await generator.sees_images(body.model), urls)
    why = {url: each.reason for url, each in found.items() if isinstance(each, NotFetched)}
    for place in left_unfetched(requests, why, strict=strict):
        note(request, place)
    return await taken_out(requests, {url: each for url, each in found.items() if isinstance(each, bytes)})


async def _fetched(request: Request, seeing: bool, urls: Sequence[str]) -> Found:
    """What stands at each address, if it is an image; otherwise, why there is none."""
    fetcher: ImageFetcher | None = request.app.state.image_fetcher
    if fetcher is None:
        return dict.fromkeys(urls, NotFetched("this server fetches none"))
    if not seeing:
        return dict.fromkeys(urls, NotFetched("this model takes no images"))
    held: Held = request.state.body
    most = held.size + MAX_BODY_BYTES

    def count(size: int) -> None:
        held.grow(size)
        if held.size > most:
            message = f"The images of a request have at most {MAX_BODY_BYTES // 2**20} MiB."
            raise BadRequest(message, param="messages", code="invalid_value")

    with _tracer.start_as_current_span("gateway.fetch_images", attributes={"quire.images": len(urls)}):
        fetching = fetcher.fetch_all(urls, held.tenant, count)
        found = await while_connected(request.receive, fetching)
    return {url: _checked(each) for url, each in found.items()}


def _checked(found: bytes | NotFetched) -> bytes | NotFetched:
    try:
        if isinstance(found, bytes):
            check_image(found)
    except ValueError as error:
        return NotFetched(str(error))
    return found
