"""What clients may ask of how alike texts are: request bodies in the shapes of Jina, Cohere and vLLM."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from gateway.api.common.body import validated
from gateway.api.common.fields import Count
from gateway.api.common.request_schema import RequestBody
from gateway.api.pooling.embeddings_schema import EmbeddingBody, Pooling, Truncation
from gateway.errors import BadRequest

MAX_TEXTS = 1024
"""Texts on one side of a comparison."""
MAX_PAIR_CHARACTERS = 2**24
"""Characters of all pairs for a cross-encoder: a query counts as often as it is compared."""

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_TEXTS}
_OBJECT = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}


def _documents(value: object) -> object:
    """Documents as texts: each is one, or an object with one."""
    if not isinstance(value, list):
        return value
    return [one.get("text") if isinstance(one, dict) else one for one in value]


def _one_or_several(value: object) -> object:
    if not isinstance(value, str | list):
        raise PydanticCustomError("string_type", "Input should be a string or a list of strings")
    return [value] if isinstance(value, str) else value


Texts = Annotated[
    list[str],
    Field(min_length=1, max_length=MAX_TEXTS),
    BeforeValidator(_one_or_several),
    WithJsonSchema({"anyOf": [_TEXT, _TEXTS]}),
]
Documents = Annotated[
    list[str],
    Field(min_length=1, max_length=MAX_TEXTS),
    BeforeValidator(_documents),
    WithJsonSchema({**_TEXTS, "items": {"anyOf": [_TEXT, _OBJECT]}}),
]


class Compared(RequestBody):
    """Texts that are compared: by their embeddings, or in pairs by a cross-encoder."""

    pooling: Pooling = None
    truncate_prompt_tokens: Truncation = None
    use_activation: bool = Field(
        True, description="With `false` a score of a cross-encoder is the model's logit; see `/v1/classify`."
    )

    def every_text(self) -> list[str]:
        """All texts, each once."""
        raise NotImplementedError

    def field_of(self, number: int) -> str:
        """The field that has the text of this number."""
        raise NotImplementedError

    def pairs(self) -> list[tuple[int, int]]:
        """Which texts are compared, by their numbers."""
        raise NotImplementedError

    def text_pairs(self) -> list[tuple[str, str]]:
        """The texts that a cross-encoder reads together. Raises `BadRequest`."""
        if self.pooling is not None:
            message = "'pooling' is for models that embed, and this one is a cross-encoder."
            raise BadRequest(message, param="pooling", code="invalid_value")
        texts, pairs = self.every_text(), self.pairs()
        if sum(len(texts[one]) + len(texts[other]) for one, other in pairs) > MAX_PAIR_CHARACTERS:
            message = f"The texts of all pairs together have more than {MAX_PAIR_CHARACTERS} characters."
            raise BadRequest(message, param=self.field_of(pairs[-1][1]), code="invalid_value")
        return [(texts[one], texts[other]) for one, other in pairs]

    def longer_fields(self) -> list[str]:
        """Of each pair, the field that has its longer text. A pair that is too long is so because of it."""
        lengths = [len(text) for text in self.every_text()]
        return [self.field_of(one if lengths[one] > lengths[other] else other) for one, other in self.pairs()]

    def embedding(self) -> EmbeddingBody:
        """The request for the embeddings of all texts. Raises `BadRequest`."""
        names = ("model", "pooling", "truncate_prompt_tokens", "user", "cache_salt", "timeout")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        if "priority" in self.model_fields_set:
            fields["priority"] = self.priority
        return validated(fields | {"input": self.every_text()}, EmbeddingBody)


class RerankBody(Compared):
    """POST /v1/rerank."""

    query: str = Field(min_length=1)
    documents: Documents
    top_n: Count | None = Field(None, description="How many of the best to return; by default, all.")
    return_documents: bool = True

    @property
    def ranked(self) -> list[str]:
        """The documents."""
        return self.documents

    def every_text(self) -> list[str]:
        return [self.query, *self.ranked]

    def field_of(self, number: int) -> str:
        return "documents" if number else "query"

    def pairs(self) -> list[tuple[int, int]]:
        return [(0, number) for number in range(1, len(self.ranked) + 1)]


class TextsBody(RerankBody):
    """POST /rerank, which Text Embeddings Inference has, too, with other names."""

    documents: Documents = Field(default_factory=list)
    texts: Documents = Field(
        default_factory=list, description="In place of `documents`: the answer is that of TEI."
    )
    raw_scores: bool = Field(False, description="With `texts`: as `use_activation: false`.")
    truncate: bool = Field(False, description="With `texts`: as `truncate_prompt_tokens: -1`.")
    return_text: bool = Field(False, description="With `texts`: the answer has these.")

    @model_validator(mode="before")
    @classmethod
    def _by_the_names_here(cls, value: object) -> object:
        if not (isinstance(value, dict) and "texts" in value):
            return value
        raw = {"use_activation": False} if value.get("raw_scores") is True else {}
        cut = {"truncate_prompt_tokens": -1} if value.get("truncate") is True else {}
        return value | raw | cut

    @model_validator(mode="after")
    def _one_of_both(self) -> "TextsBody":
        if bool(self.texts) == bool(self.documents):
            message = "There must be 'documents' or 'texts', and not both."
            raise BadRequest(message, param="documents", code="invalid_value")
        return self

    @property
    def ranked(self) -> list[str]:
        return self.texts or self.documents

    def field_of(self, number: int) -> str:
        return "texts" if number and self.texts else super().field_of(number)


FIRST, SECOND = ("queries", "data_1"), ("documents", "items", "data_2")
"""Other names of the texts to score, as clients of vLLM have them."""


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


class ScoreBody(Compared):
    """POST /v1/score."""

    text_1: Texts = Field(description=f"Other names: {_named(FIRST)}.")
    text_2: Texts = Field(
        description=f"As many as `text_1`, or any number if that is one. Other names: {_named(SECOND)}."
    )

    @model_validator(mode="before")
    @classmethod
    def _by_other_names(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = dict(value)
        for name, others in (("text_1", FIRST), ("text_2", SECOND)):
            for other in others:
                if name not in fields and other in fields:
                    fields[name] = fields.pop(other)
        return fields

    @model_validator(mode="after")
    def _pairs(self) -> "ScoreBody":
        if len(self.text_1) not in (1, len(self.text_2)):
            message = "'text_1' must be one text, or as many as 'text_2'."
            raise BadRequest(message, param="text_1", code="invalid_value")
        return self

    def every_text(self) -> list[str]:
        return [*self.text_1, *self.text_2]

    def field_of(self, number: int) -> str:
        return "text_1" if number < len(self.text_1) else "text_2"

    def pairs(self) -> list[tuple[int, int]]:
        first, count = len(self.text_1), len(self.text_2)
        return [(number if first > 1 else 0, first + number) for number in range(count)]
