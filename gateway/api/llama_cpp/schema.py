"""What clients may ask in the shape of llama.cpp's server: /completion and /infill."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.api.common.body import validated
from gateway.api.common.fields import MAX_INT32, Biases, declared
from gateway.api.common.request_schema import BodyPart
from gateway.api.infill.schema import GapBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.errors import BadRequest
from proto.sampling import MAX_BIAS, MAX_BIASES
from proto.tokenizer_pb2 import Infill, ProjectFile

MAX_FILES = 256
"""Other files of one request."""
_OF_THE_SERVER = {"cache_prompt", "samplers", "id_slot", "t_max_prompt_ms", "t_max_predict_ms"}
"""Fields without effect: they say how the server works, and nothing of the answer."""
_NOT_ANSWERED = {
    *("echo", "logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"),
    "stream_options",
}
_PAIR = {"type": "array", "minItems": 2, "maxItems": 2}
_PAIRS = {"anyOf": [{"type": "object"}, {"type": "array", "items": _PAIR, "maxItems": MAX_BIASES}]}


def _of_pairs(value: object) -> object:
    """Biases by token id, of pairs of both, in which `false` forbids the token."""
    if not isinstance(value, list):
        return value
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("too_long", f"At most {MAX_BIASES} tokens can have a bias")
    found: dict[str, Any] = {}
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int):
            raise PydanticCustomError("bias", "Each is a pair of a token id and a number or false")
        found[str(pair[0])] = -MAX_BIAS if pair[1] is False else pair[1]
    return found


ResponseFields = Annotated[
    list[Annotated[str, Field(max_length=64)]],
    Field(
        default_factory=list,
        max_length=64,
        description="Fields that the answer has alone, those within others as in `timings/prompt_n`.",
    ),
]

Json = dict[str, Any]


def _predicted() -> Any:
    return Field(
        -1,
        ge=-2,
        le=MAX_INT32,
        description="Tokens at most; below 0: up to the end of the context. 0: the prompt is only cached.",
    )


class LlamaCompletionBody(CompletionBody):
    """POST /completion: the parameters of /v1/completions, some under llama.cpp's names."""

    ignored: ClassVar[frozenset[str]] = CompletionBody.ignored | _OF_THE_SERVER

    n_predict: int = _predicted()
    repeat_penalty: float = declared("repetition_penalty")
    logit_bias: Annotated[Biases, BeforeValidator(_of_pairs), WithJsonSchema(_PAIRS)] = Field(
        default_factory=dict,
        description="Pairs of token ids and biases, or an object with these; false: never.",
    )
    response_fields: ResponseFields

    @property
    def unanswered(self) -> set[str]:
        """Fields that ask for what the answer does not have."""
        return self.model_fields_set & _NOT_ANSWERED

    def completion(self) -> CompletionBody:
        """The same request of the completions API. Raises `BadRequest`."""
        for name, count in (("prompt", self.prompts), ("n", self.n), ("best_of", self.sequences)):
            if count != 1:
                raise BadRequest("There is one prompt and one answer.", param=name, code="invalid_value")
        names = self.model_fields_set & CompletionBody.model_fields.keys() - _NOT_ANSWERED
        fields = {name: getattr(self, name) for name in names}
        if "repeat_penalty" in self.model_fields_set:
            fields["repetition_penalty"] = self.repeat_penalty
        if self.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if "n_predict" in self.model_fields_set or "max_tokens" not in fields:
            fields["max_tokens"] = -1 if self.n_predict < 0 else self.n_predict or 1
        return validated(fields, CompletionBody)


class ExtraFile(BodyPart):
    """Another file."""

    place: ClassVar[str] = "input_extra."

    filename: str = "file"
    text: str = ""


class InfillBody(GapBody):
    """POST /infill."""

    ignored: ClassVar[frozenset[str]] = GapBody.ignored | _OF_THE_SERVER

    input_prefix: str = Field("", description="What stands before the gap.")
    input_suffix: str = Field("", description="What stands after it.")
    prompt: str = Field("", description="What stands between `input_prefix` and the gap.")
    input_extra: list[ExtraFile] = Field(
        default_factory=list, max_length=MAX_FILES, description="Other files, the nearest one last."
    )
    n_predict: int = _predicted()
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
