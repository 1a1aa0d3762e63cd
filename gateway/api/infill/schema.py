"""Texts with a gap: request bodies in the shapes of Mistral and llama.cpp, and llama.cpp's answer."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from gateway.api.common.answers import AnswerPart
from gateway.api.common.body import validated
from gateway.api.common.fields import MAX_INT32, Stops, declared
from gateway.api.common.request_schema import BodyPart, RequestBody
from gateway.api.openai.chat_schema import ChatBody
from proto.tokenizer_pb2 import Infill, ProjectFile

MAX_FILES = 256
"""Other files of one request."""
_COMMON = ("temperature", "top_p", "seed", "stop", "stream", "user", "cache_salt", "timeout")
"""Fields that the chat API has under the same names."""

Json = dict[str, Any]


def _seed(value: object) -> object:
    return None if value == -1 else value


Seed = Annotated[
    int | None,
    Field(ge=-(2**63), le=2**64 - 1),
    BeforeValidator(_seed, json_schema_input_type=int | None),
]
"""-1: another one each time."""


PREDICTED: Any = Field(
    -1,
    ge=-2,
    le=MAX_INT32,
    description="Tokens at most; below 0: up to the end of the context. 0: the prompt is only cached.",
)
"""Of llama.cpp's requests."""
ResponseFields = Annotated[
    list[Annotated[str, Field(max_length=64)]],
    Field(
        default_factory=list,
        max_length=64,
        description="Fields that the answer has alone, those within others as in `timings/prompt_n`.",
    ),
]


class _InfillBody(RequestBody):
    """Fields that both have in common."""

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


class FimBody(_InfillBody):
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


class ExtraFile(BodyPart):
    """Another file."""

    place: ClassVar[str] = "input_extra."

    filename: str = "file"
    text: str = ""


class InfillBody(_InfillBody):
    """POST /infill."""

    ignored: ClassVar[frozenset[str]] = RequestBody.ignored | {
        *("cache_prompt", "samplers", "t_max_prompt_ms", "id_slot"),
    }

    input_prefix: str = Field("", description="What stands before the gap.")
    input_suffix: str = Field("", description="What stands after it.")
    prompt: str = Field("", description="What stands between `input_prefix` and the gap.")
    input_extra: list[ExtraFile] = Field(
        default_factory=list, max_length=MAX_FILES, description="Other files, the nearest one last."
    )
    n_predict: int = PREDICTED
    top_k: int = declared("top_k", description="0 or -1: off.")
    min_p: float = declared("min_p")
    typical_p: float = declared("typical_p")
    repeat_penalty: float = declared("repetition_penalty")
    presence_penalty: float = declared("presence_penalty")
    frequency_penalty: float = declared("frequency_penalty")
    response_fields: ResponseFields

    def _limits(self) -> Json:
        names = ("top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty")
        found: Json = {name: getattr(self, name) for name in self.model_fields_set.intersection(names)}
        if "repeat_penalty" in self.model_fields_set:
            found["repetition_penalty"] = self.repeat_penalty
        return found | ({"max_tokens": self.n_predict or 1} if self.n_predict >= 0 else {})

    def gap(self) -> Infill:
        files = [ProjectFile(name=one.filename, text=one.text) for one in self.input_extra]
        return Infill(before=self.input_prefix + self.prompt, after=self.input_suffix, files=files)


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


INFILL: tuple[type[AnswerPart], ...] = (LlamaText,)
