"""What clients may ask of /embed: a request body in the shape of Text Embeddings Inference."""

from typing import Any, ClassVar

from pydantic import Field

from gateway.api.common.answers import AnswerPart
from gateway.api.common.body import validated
from gateway.api.common.fields import Count, Inputs
from gateway.api.common.request_schema import RequestBody
from gateway.api.pooling.embeddings_schema import EmbeddingBody


class TextsError(AnswerPart):
    """An error as Text Embeddings Inference has it."""

    error: str
    error_type: str


class EmbedTextsBody(RequestBody):
    """POST /embed."""

    # Embeddings always have length 1: cosines, for which they are made, do not depend on it.
    ignored: ClassVar[frozenset[str]] = RequestBody.ignored | {"normalize"}
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        "prompt_name": ("",),
        "truncation_direction": ("right", "Right"),
    }

    inputs: Inputs
    truncate: bool = Field(False, description="Cut a text that is too long, instead of refusing it.")
    dimensions: Count | None = Field(None, description="Numbers to keep from the start of each embedding.")

    def embedding(self) -> EmbeddingBody:
        """The same request of OpenAI's API. Raises `BadRequest`."""
        names = ("model", "dimensions", "user", "cache_salt", "timeout")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        if "priority" in self.model_fields_set:
            fields["priority"] = self.priority
        if self.truncate:
            fields["truncate_prompt_tokens"] = -1
        return validated(fields | {"input": self.inputs}, EmbeddingBody)
