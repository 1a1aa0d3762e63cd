"""What clients may ask of /v1/embeddings, and /pooling."""

from typing import Literal

from pydantic import Field

from gateway.api.fields import Count, Inputs
from gateway.api.request_schema import RequestBody


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings, and /pooling."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = Field(None, description="Numbers to keep from the start of each embedding.")
    pooling: Literal["mean", "last"] | None = Field(
        None, description="How the tokens become one vector; the default is the model's."
    )
