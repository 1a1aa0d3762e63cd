"""KServe's Open Inference Protocol, version 2: its request bodies and its answers."""

from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.api.common.answers import AnswerPart
from gateway.api.common.body import validated
from gateway.api.common.fields import MAX_PROMPTS, at_most
from gateway.api.common.request_schema import BodyPart, RequestBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.errors import BadRequest

PARAMETERS = frozenset(
    (
        *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    )
)
"""Fields of the completions API that a request may have among its parameters."""

MAX_DIMENSIONS = 8
MAX_PARAMETERS = 64
Parameters = Annotated[
    dict[str, str | int | float | bool], Field(max_length=MAX_PARAMETERS), at_most(MAX_PARAMETERS)
]


def _flat(value: object) -> object:
    """The elements in row-major order of a tensor that comes flat, or as lists within lists."""
    for _ in range(MAX_DIMENSIONS):
        if not (isinstance(value, list) and all(isinstance(each, list) for each in value)):
            break
        value = [part for each in value for part in each]
    return value


class InferInput(BodyPart):
    """A tensor of texts."""

    place: ClassVar[str] = "inputs."

    name: str
    shape: list[int] = Field(min_length=1, max_length=MAX_DIMENSIONS)
    datatype: Literal["BYTES"]
    data: Annotated[list[str], BeforeValidator(_flat, json_schema_input_type=list[Any])] = Field(
        min_length=1, max_length=MAX_PROMPTS, description="The texts, in row-major order or as nested lists."
    )
    parameters: Parameters = Field(default_factory=dict, description="Without effect.")

    @model_validator(mode="after")
    def _as_its_shape(self) -> "InferInput":
        if prod(self.shape) != len(self.data) or min(self.shape) < 1:
            message = f"'inputs': a tensor of shape {self.shape} does not have {len(self.data)} elements."
            raise BadRequest(message, param="inputs", code="invalid_value")
        return self


class InferBody(RequestBody):
    """POST /v2/models/{name}/infer."""

    ignored: ClassVar[frozenset[str]] = RequestBody.ignored | {"outputs"}
    for_model: ClassVar[bool] = False

    model: str = Field("", description="Without effect: the path names the model.")
    id: str = Field("", max_length=256, description="Comes back in the answer.")
    inputs: list[InferInput] = Field(min_length=1, max_length=1)
    parameters: Parameters = Field(
        default_factory=dict, description=f"May be: {', '.join(sorted(PARAMETERS))}; as in /v1/completions."
    )

    def completion(self, model: str) -> CompletionBody:
        """The same request of the completions API. Raises `BadRequest`."""
        for name in self.parameters.keys() - PARAMETERS:
            message = f"'parameters.{name[:100]}' is not supported."
            raise BadRequest(message, param="parameters", code="unsupported_parameter")
        fields: dict[str, Any] = {
            **{name: getattr(self, name) for name in ("user", "cache_salt", "timeout")},
            **self.parameters,
            "model": model,
            "prompt": self.inputs[0].data,
        }
        if "priority" in self.model_fields_set:
            fields["priority"] = self.priority
        return validated(fields, CompletionBody)


class KserveLive(AnswerPart):
    """The answer of GET /v2/health/live."""

    live: Literal[True]


class KserveReady(AnswerPart):
    """The answer of GET /v2/health/ready."""

    ready: bool


class KserveModelReady(KserveReady):
    """The answer of GET /v2/models/{name}/ready."""

    name: str


class KserveServer(AnswerPart):
    """The answer of GET /v2."""

    name: Literal["quire"]
    version: str
    extensions: list[str]


class KserveTensor(AnswerPart):
    """What a tensor of a model is like."""

    name: str
    datatype: Literal["BYTES"]
    shape: list[int] = Field(description="-1: any number.")


class KserveModel(AnswerPart):
    """The answer of GET /v2/models/{name}."""

    name: str
    versions: list[str]
    platform: Literal["quire"]
    inputs: list[KserveTensor]
    outputs: list[KserveTensor]


class InferOutput(KserveTensor):
    """The texts that go on from those of the request, in their shape."""

    data: list[str]


class InferAnswer(AnswerPart):
    """The answer of POST /v2/models/{name}/infer."""

    model_name: str
    id: str
    outputs: list[InferOutput]


class KserveError(AnswerPart):
    """The body of every answer of KServe's API whose status is 400 or above."""

    error: str


KSERVE: tuple[type[AnswerPart], ...] = (
    *(KserveLive, KserveReady, KserveModelReady, KserveServer, KserveModel),
    *(InferAnswer, KserveError),
)
