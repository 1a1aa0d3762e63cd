"""Asking the tokenizer service what the tokens of a prompt are."""

from gateway.upstream.attempts import Attempts
from gateway.upstream.generator import Generator
from gateway.upstream.images import NO_IMAGES, Images
from proto.rpc import Resumption
from proto.tokenizer_pb2 import TextRequest, TokenizeRequest, TokenizeResponse
from proto.tokenizer_pb2_grpc import TokenizerStub


class Tokenization(Attempts):
    """The tokens of one prompt. When a server dies, the next one is asked."""

    def __init__(
        self, tokenizer: TokenizerStub, request: TokenizeRequest, timeout: float | None = None
    ) -> None:
        super().__init__(timeout)
        self._tokenizer, self._request = tokenizer, request
        given = request.request.WhichOneof("prompt")
        self._names = {"prompt": {"chat": "messages", "tokens": "tokens"}.get(given, "prompt")}

    async def result(self) -> TokenizeResponse:
        """The tokenizer service's response. Raises `GatewayError`."""
        resumption = Resumption()
        while self._ended_by is None:
            if self.images is not None:
                await self._put_images(self.images)
            async with self._attempt(
                self._tokenizer.Tokenize, self._request, resumption, self._names
            ) as call:
                response: TokenizeResponse = await call
                return response
        raise self._ended_by


async def tokenize(
    generator: Generator,
    model: str,
    request: TextRequest,
    *,
    names: bool = False,
    timeout: float | None = None,
    images: Images = NO_IMAGES,
) -> TokenizeResponse:
    """The prompt of `request` as tokens. `names`: also as the vocabulary spells them.

    `timeout`: in seconds; None: the generator's `answer_timeout`. `images`: those that the request names.
    Raises `GatewayError`.
    """
    timeout = generator.answer_timeout if timeout is None else timeout

    def begin(tokenizer: TokenizerStub) -> list[Tokenization]:
        return [Tokenization(tokenizer, TokenizeRequest(request=request, names=names), timeout)]

    # It runs in a turn, and has no place that it could give up meanwhile.
    async with generator.watched(model, begin, [request], timeout, at_once=1, images=images) as (asked,):
        return await asked.result()
