"""What clients may ask: the request bodies of the OpenAI API and the usual extensions of it.

The checks here need no model. The defaults are OpenAI's; a default of the model's own replaces them (see
`translate.py`). Ranges and defaults of sampling parameters are declared in `proto/sampling.proto`. A body is
validated strictly: a string is not a number, and an unknown name is an error instead of a silent misspelling.
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.api.fields import (
    MAX_INT32,
    MAX_STOP_TOKENS,
    Count,
    Inputs,
    Prompts,
    Stops,
    Text,
    TokenId,
    Unsupported,
    declared,
)
from gateway.errors import BadRequest
from proto.sampling import MAX_SEQUENCES, STAGED


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Body):
    """What a stream contains besides the text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class RequestBody(_Body):
    """Fields that all endpoints have in common."""

    # Accepted without effect: they concern the client's bookkeeping, not the answer.
    ignored: ClassVar[frozenset[str]] = frozenset(
        ("metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
    )
    # OpenAI's parameters that are not supported, each with the values that change nothing and are accepted.
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {}

    model: str = Field(min_length=1)
    cache_salt: str = Field("", max_length=256)
    user: str = Field("", max_length=256, description="The tenant, if no API key names one.")
    priority: int = Field(0, ge=-(2**31), le=MAX_INT32, description="Lower runs earlier.")
    timeout: float | None = Field(None, gt=0, le=86400, description="Seconds that the answer may take.")


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings."""

    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = Field(None, description="Numbers to keep from the start of each embedding.")
    pooling: Literal["mean", "last"] | None = Field(
        None, description="How the tokens become one vector; the default is the model's."
    )


class GenerationBody(RequestBody):
    """Fields that the two generating endpoints have in common."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {"logit_bias": ({},)}

    n: int = Field(1, ge=1, le=MAX_SEQUENCES)
    max_tokens: int | None = declared("max_tokens")
    temperature: float = declared("temperature")
    top_p: float = declared("top_p")
    top_k: int = declared("top_k", description="0 or -1: off.")
    min_p: float = declared("min_p")
    presence_penalty: float = declared("presence_penalty")
    frequency_penalty: float = declared("frequency_penalty")
    repetition_penalty: float = declared("repetition_penalty")
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1, description="Taken modulo 2^64.")
    stop: Stops = Field(default_factory=list)
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=MAX_STOP_TOKENS)
    ignore_eos: bool = False
    rolling_context: bool = Field(
        False,
        description="Go on past the model's context; the middle of the text is then forgotten.",
    )
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    use_beam_search: bool = Field(False, description="Find the `n` most likely answers instead of sampling.")
    beam_width: int | None = declared("beam_width", description="Number of beams; `n` by default.")
    length_penalty: float = declared("length_penalty", description="Above 0 favours longer answers.")
    early_stopping: bool | Literal["never"] = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            message = "'stream_options' is only allowed with 'stream'."
            raise BadRequest(message, param="stream_options", code="invalid_value")
        return self

    @model_validator(mode="after")
    def _beam_search_does_not_sample(self) -> "GenerationBody":
        given, beams = self.model_fields_set, ("beam_width", "length_penalty", "early_stopping")
        if not self.use_beam_search:
            for name in given.intersection(beams):
                raise BadRequest(f"'{name}' needs 'use_beam_search'.", param=name, code="invalid_value")
            return self
        if self.width < self.n:
            raise BadRequest("'beam_width' must be at least 'n'.", param="beam_width", code="invalid_value")
        if self.wanted_logprobs is not None:
            message = "Beam search does not report log probabilities."
            raise BadRequest(message, param="logprobs", code="invalid_value")
        if "temperature" in given and self.temperature:
            message = "Beam search does not sample: leave out 'temperature' or set it to 0."
            raise BadRequest(message, param="temperature", code="invalid_value")
        shaping = [each.name for each in STAGED if self.staged[each.name] != each.default]
        for name in ["rolling_context"] * self.rolling_context + shaping:
            if name != "temperature":
                message = f"'{name}' has no effect on beam search: leave it out."
                raise BadRequest(message, param=name, code="invalid_value")
        return self

    @property
    def staged(self) -> dict[str, float]:
        """Penalties, temperature and filters by name, in the ranges that services accept from each other."""
        return {each.name: each.range.nearest(getattr(self, each.name)) for each in STAGED}

    @property
    def width(self) -> int:
        """Number of beams of a beam search."""
        return self.n if self.beam_width is None else self.beam_width

    @model_validator(mode="after")
    def _endless_answers_are_streamed(self) -> "GenerationBody":
        if self.rolling_context and self.limit is None and not self.stream:
            message = "'rolling_context' without 'max_tokens' has no end and needs 'stream'."
            raise BadRequest(message, param="max_tokens", code="invalid_value")
        return self

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; None: as many as the context has room for."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def sequences(self) -> int:
        """Sequences to generate for each prompt. The client gets `n` of them."""
        return self.n

    @property
    def wanted_logprobs(self) -> int | None:
        """Alternatives to report with each token; None: no log probabilities."""
        raise NotImplementedError


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationBody.neutral,
        "echo": (False,),
        "suffix": ("",),
    }

    prompt: Prompts
    max_tokens: int | None = declared("max_tokens", default=16)
    best_of: int | None = Field(
        None,
        ge=1,
        le=MAX_SEQUENCES,
        description="Answers to sample; the `n` with the highest log probability per token are returned.",
    )
    logprobs: int | None = declared("logprobs")

    @model_validator(mode="after")
    def _bounded(self) -> "CompletionBody":
        if self.use_beam_search and self.sequences != self.n:
            message = "'best_of' does not go with 'use_beam_search': set 'beam_width'."
            raise BadRequest(message, param="best_of", code="invalid_value")
        if self.sequences < self.n:
            message = "'best_of' must be at least 'n'."
            raise BadRequest(message, param="best_of", code="invalid_value")
        if self.sequences > self.n and self.stream:
            message = "'best_of' above 'n' cannot be streamed: the best answers are known at the end."
            raise BadRequest(message, param="best_of", code="invalid_value")
        if len(self.prompt) * self.sequences > MAX_SEQUENCES:
            name = "n" if self.best_of is None else "best_of"
            message = f"Prompts times '{name}' must be at most {MAX_SEQUENCES}."
            raise BadRequest(message, param=name, code="invalid_value")
        return self

    @property
    def limit(self) -> int | None:
        # With a rolling context the default is no limit, in place of 16 tokens.
        return None if self.rolling_context and "max_tokens" not in self.model_fields_set else self.max_tokens

    @property
    def sequences(self) -> int:
        return self.n if self.best_of is None else self.best_of

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs


class Message(_Body):
    """One message of a conversation."""

    role: str = Field(min_length=1, max_length=64)
    content: Text
    name: str = Field("", max_length=256, description="Name of the speaker.")
    refusal: Unsupported = None
    annotations: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    tool_calls: Unsupported = None
    tool_call_id: Unsupported = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_extras(cls, value: object) -> object:
        """Without null and empty fields, which client libraries add to an assistant's message."""
        if not isinstance(value, dict):
            return value
        return {
            key: part for key, part in value.items() if key in ("role", "content") or part not in (None, [])
        }


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationBody.neutral,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "moderation": (),
        "web_search_options": (),
        "prompt_cache_options": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "store": (False,),
        "service_tier": ("auto", "default"),
    }

    messages: list[Message] = Field(min_length=1)
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Variables of the model's own chat template."
    )
    max_completion_tokens: int | None = declared("max_tokens")
    logprobs: bool = False
    top_logprobs: int | None = declared("logprobs")

    @model_validator(mode="after")
    def _consistent(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            message = "'top_logprobs' is only allowed with 'logprobs'."
            raise BadRequest(message, param="top_logprobs", code="invalid_value")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            message = "'max_tokens' and 'max_completion_tokens' differ; use the latter."
            raise BadRequest(message, param="max_tokens", code="invalid_value")
        return self

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
