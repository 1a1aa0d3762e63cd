"""What clients may ask of /v1/embeddings, and /pooling."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.api.fields import Count, Inputs
from gateway.api.request_schema import RequestBody

Pooling = Annotated[
    Literal["mean", "last", "cls"] | None,
    Field(description="How the tokens become one vector; the default is the model's. `cls`: of encoders."),
]


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings, and /pooling."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = Field(None, description="Numbers to keep from the start of each embedding.")
    pooling: Pooling = None
