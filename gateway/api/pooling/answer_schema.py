"""What clients get of models that embed, compare or classify texts, for the OpenAPI document alone."""

from typing import Literal

from pydantic import Field, RootModel

from gateway.api.common.answers import AnswerPart


class EmbeddingUsage(AnswerPart):
    """Tokens of a request for embeddings."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(AnswerPart):
    """The embedding of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Numbers, or little-endian float32 in base64.")


class EmbeddingList(AnswerPart):
    """The answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


class PooledObject(AnswerPart):
    """The embedding of one text, or of each of its tokens."""

    object: Literal["pooling"]
    index: int
    data: list[float] | list[list[float]] | str = Field(
        description="Numbers, or little-endian float32 in base64: those of one token after the other."
    )


class PooledList(AnswerPart):
    """The answer of POST /pooling."""

    id: str
    object: Literal["list"]
    created: int = Field(description="Unix time, seconds.")
    data: list[PooledObject]
    model: str
    usage: EmbeddingUsage


class RankedDocument(AnswerPart):
    """A document as it was given."""

    text: str


class Ranked(AnswerPart):
    """A document and how alike it is to the query."""

    index: int = Field(description="Its number among the request's documents.")
    relevance_score: float = Field(
        description="The cosine of the two embeddings, from -1 to 1; or a cross-encoder's score."
    )
    document: RankedDocument | None = Field(None, description="With `return_documents`.")


class Ranking(AnswerPart):
    """The answer of POST /v1/rerank."""

    id: str
    model: str
    usage: EmbeddingUsage
    results: list[Ranked] = Field(description="The best one first.")


class RankedText(AnswerPart):
    """A text and how alike it is to the query."""

    index: int = Field(description="Its number among the request's texts.")
    score: float
    text: str | None = Field(None, description="With `return_text`.")


class AnyRanking(RootModel[Ranking | list[RankedText]]):
    """The answer of POST /rerank: with `texts` a list, the best one first."""


class PairScore(AnswerPart):
    """How alike the texts of a pair are."""

    index: int
    object: Literal["score"]
    score: float = Field(
        description="The cosine of the two embeddings, from -1 to 1; or a cross-encoder's score."
    )


class Scores(AnswerPart):
    """The answer of POST /v1/score."""

    id: str
    object: Literal["list"]
    created: int = Field(description="Unix time, seconds.")
    model: str
    data: list[PairScore]
    usage: EmbeddingUsage


class Classified(AnswerPart):
    """The labels of a text."""

    index: int
    label: str = Field(description="The label with the highest number.")
    probs: list[float] = Field(
        description="A number for each label: its probability, or the score of a model without these."
    )
    num_classes: int = Field(description="Number of labels.")


class Classification(AnswerPart):
    """The answer of POST /v1/classify."""

    id: str
    object: Literal["list"]
    created: int = Field(description="Unix time, seconds.")
    data: list[Classified]
    model: str
    usage: EmbeddingUsage


class TextVectors(RootModel[list[list[float]]]):
    """The answer of POST /embed: a vector of each text."""


class TextModelType(AnswerPart):
    """What the model does: one of these is there."""

    embedding: dict[str, str] | None = None
    reranker: dict[str, str] | None = None
    classifier: dict[str, str] | None = None


class TextModelInfo(AnswerPart):
    """The answer of GET /info."""

    model_id: str
    model_type: TextModelType
    max_concurrent_requests: int
    max_input_length: int = Field(description="Tokens of a text at most.")
    max_client_batch_size: int = Field(description="Texts of a request at most.")
    auto_truncate: Literal[False] = Field(description="A text that is too long is refused unless it says so.")
    version: str


POOLING = (
    *(EmbeddingList, PooledList, Ranking, AnyRanking, Scores, Classification),
    *(TextVectors, TextModelInfo),
)
