"""What clients of Ollama's API get, for the OpenAPI document alone."""

from typing import Any, Literal

from pydantic import Field

from gateway.api.common.answers import AnswerPart
from gateway.api.openai.answer_schema import ChosenTokenLogprob


class OllamaDetails(AnswerPart):
    """What is known of a model: nothing. Clients expect the fields."""

    parent_model: Literal[""]
    format: Literal["safetensors"]
    family: Literal[""]
    families: list[str]
    parameter_size: Literal[""]
    quantization_level: Literal[""]


class OllamaModel(AnswerPart):
    """A model on offer."""

    name: str
    model: str
    modified_at: str = Field(description="When this gateway first saw it.")
    size: Literal[0] = Field(description="Not known.")
    digest: str = Field(description="Of the name.")
    details: OllamaDetails


class OllamaModels(AnswerPart):
    """The answer of GET /api/tags and /api/ps."""

    models: list[OllamaModel]


class OllamaShown(AnswerPart):
    """The answer of POST /api/show."""

    modelfile: str
    parameters: str = Field(description="The model's own defaults, one a line.")
    template: Literal[""]
    modified_at: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(AnswerPart):
    """The answer of GET /api/version."""

    version: str


class OllamaCalledFunction(AnswerPart):
    """A function and its arguments."""

    name: str
    arguments: dict[str, Any]


class OllamaMadeCall(AnswerPart):
    """A call that the model makes."""

    id: str
    function: OllamaCalledFunction


class OllamaSaid(AnswerPart):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    thinking: str = ""
    tool_calls: list[OllamaMadeCall] = Field([])


class OllamaPart(AnswerPart):
    """What answers and their pieces have in common. The last fields are those of the end; times are in ns."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] = "stop"
    total_duration: int = 0
    load_duration: Literal[0] = 0
    prompt_eval_count: int = Field(0, description="Tokens of the prompt.")
    prompt_eval_duration: int = Field(0, description="Until the first token of the answer came.")
    eval_count: int = Field(0, description="Tokens of the answer.")
    eval_duration: int = 0
    logprobs: list[ChosenTokenLogprob] = Field([], description="Of the tokens of this part, if asked for.")


class OllamaChatAnswer(OllamaPart):
    """The answer of POST /api/chat, or a piece of it."""

    message: OllamaSaid


class OllamaGenerated(OllamaPart):
    """The answer of POST /api/generate, or a piece of it."""

    response: str
    thinking: str = ""


class OllamaEmbeddings(AnswerPart):
    """The answer of POST /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = Field(description="In nanoseconds.")
    load_duration: Literal[0]
    prompt_eval_count: int


class OllamaEmbedding(AnswerPart):
    """The answer of POST /api/embeddings."""

    embedding: list[float]


class OllamaError(AnswerPart):
    """The body of every answer of Ollama's API whose status is 400 or above; in a stream the last line."""

    error: str


OLLAMA: tuple[type[AnswerPart], ...] = (
    *(OllamaModels, OllamaShown, OllamaVersion, OllamaChatAnswer, OllamaGenerated),
    *(OllamaEmbeddings, OllamaEmbedding, OllamaError),
)
