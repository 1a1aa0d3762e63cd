"""What clients may ask of /v1/embeddings and /pooling."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.api.common.fields import Count, Inputs, Kept
from gateway.api.common.request_schema import RequestBody
from gateway.errors import BadRequest

Pooling = Annotated[
    Literal["mean", "last", "cls"] | None,
    Field(description="How the tokens become one vector; the default is the model's. `cls`: of encoders."),
]


Truncation = Annotated[
    Kept | None,
    Field(
        description="Tokens to keep from the start of a text, special ones included; of a pair its longer "
        "text is cut. -1: as many as the model takes. By default a text that is too long is refused."
    ),
]


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = Field(None, description="Numbers to keep from the start of each embedding.")
    pooling: Pooling = None
    truncate_prompt_tokens: Truncation = None


class PoolingBody(EmbeddingBody):
    """POST /pooling."""

    task: Literal["embed", "token_embed"] | None = Field(
        None, description="`embed`, the default: a vector for each text. `token_embed`: one for each token."
    )

    @property
    def of_tokens(self) -> bool:
        """Whether each token becomes a vector."""
        return self.task == "token_embed"

    @model_validator(mode="after")
    def _consistent(self) -> "PoolingBody":
        for name in ("pooling", "dimensions"):
            if self.of_tokens and getattr(self, name) is not None:
                message = f"'{name}' does not go with the task 'token_embed'."
                raise BadRequest(message, param=name, code="invalid_value")
        return self
