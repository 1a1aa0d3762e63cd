"""What answers of llama.cpp's server have."""

from typing import Literal

from pydantic import ConfigDict, Field

from gateway.api.common.answers import AnswerPart


class LlamaTimings(AnswerPart):
    """How long it took, in milliseconds."""

    prompt_n: int = Field(description="Tokens of the prompt that were computed.")
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class LlamaSettings(AnswerPart):
    """What the model works with."""

    n_ctx: int = Field(description="Tokens of prompt and answer together.")


class LlamaText(AnswerPart):
    """The answer of /infill and /completion. All but the last piece of a stream have the first three fields.

    With `response_fields` it has these alone.
    """

    model_config = ConfigDict(extra="allow")

    index: Literal[0] | None = None
    content: str | None = None
    stop: bool | None = Field(None, description="Nothing follows.")
    model: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = Field(None, description="Tokens of the prompt.")
    tokens_cached: int | None = Field(None, description="Those of them that were not computed.")
    truncated: Literal[False] | None = None
    stop_type: Literal["eos", "limit", "word"] | None = None
    stopping_word: str | None = None
    generation_settings: LlamaSettings | None = None
    timings: LlamaTimings | None = None


LLAMA_CPP: tuple[type[AnswerPart], ...] = (LlamaText,)
