"""Texts with a gap: what requests for them have in common, and those in the shape of Mistral."""

from typing import Any

from pydantic import Field

from gateway.api.common.body import validated
from gateway.api.common.fields import Seed, Stops, declared
from gateway.api.common.request_schema import RequestBody
from gateway.api.openai.chat_schema import ChatBody
from proto.tokenizer_pb2 import Infill

_COMMON = ("temperature", "top_p", "seed", "stop", "stream", "user", "cache_salt", "timeout")
"""Fields that the chat API has under the same names."""

Json = dict[str, Any]


class GapBody(RequestBody):
    """Fields that all have in common."""

    temperature: float = declared("temperature")
    top_p: float = declared("top_p")
    seed: Seed = None
    stop: Stops = Field(default_factory=list)
    stream: bool = False

    def chat(self) -> ChatBody:
        """The same request of the chat API, whose conversation does not count. Raises `BadRequest`."""
        fields: Json = {name: getattr(self, name) for name in self.model_fields_set & {*_COMMON, "priority"}}
        content = {"model": self.model, "messages": [{"role": "user", "content": ""}]}
        return validated(fields | self._limits() | content, ChatBody)

    def _limits(self) -> Json:
        """Fields of the chat API that are called otherwise here."""
        raise NotImplementedError

    def gap(self) -> Infill:
        """The text with its gap."""
        raise NotImplementedError


class FimBody(GapBody):
    """POST /v1/fim/completions."""

    prompt: str = Field(description="What stands before the gap.")
    suffix: str = Field("", description="What stands after it.")
    max_tokens: int | None = declared("max_tokens", description="-1: up to the end of the context.")
    min_tokens: int = declared("min_tokens", description="Tokens before which nothing ends an answer.")
    random_seed: Seed = Field(None, description="Another name of `seed`.")

    def _limits(self) -> Json:
        seed = {"seed": self.random_seed} if self.seed is None else {}
        return seed | {
            name: getattr(self, name) for name in self.model_fields_set & {"max_tokens", "min_tokens"}
        }

    def gap(self) -> Infill:
        return Infill(before=self.prompt, after=self.suffix)
