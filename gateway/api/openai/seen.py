"""The images of a request that its model gets to see."""

from collections.abc import Sequence

from fastapi import Request

from gateway.api.common.body import note
from gateway.api.generation.schema import GenerationBody
from gateway.api.messages.images import left_out, taken_out
from gateway.upstream.generator import Generator
from gateway.upstream.images import NO_IMAGES, Images
from proto.tokenizer_pb2 import TextRequest


async def images_of(
    request: Request, generator: Generator, body: GenerationBody, requests: Sequence[TextRequest]
) -> Images:
    """The images of `requests`, from whose texts they are taken out.

    Those of tools that the model cannot see, or that are too many, are left out, and noted as ignored. Raises
    `GatewayError`.
    """
    if not body.has_images:
        return NO_IMAGES
    lenient = not request.app.state.strict_fields
    if lenient and await left_out(requests, await generator.sees_images(body.model)):
        note(request, "tool_result.image")
    return await taken_out(requests)
