"""What the gateway tells of its models."""

from typing import Any, Literal

from pydantic import Field

from gateway.api.common.answers import AnswerPart


class ModelObject(AnswerPart):
    """A model on offer."""

    id: str = Field(description="Its name, or an alias.")
    root: str = Field(description="Its name.")
    parent: str | None = Field(description="Name of the model whose LoRA adapter it is; null: it is none.")
    object: Literal["model"]
    type: Literal["model"]
    display_name: str
    created: int = Field(description="Unix time at which this gateway first saw it, seconds.")
    created_at: str = Field(description="The same time.")
    owned_by: Literal["quire"]
    max_model_len: int = Field(description="Tokens of prompt and answer together.")
    max_input_tokens: int = Field(description="The same number, as Anthropic's clients read it.")
    max_tokens: int = Field(description="The same number.")
    context_length: int = Field(description="The same number, as clients of routers read it.")
    max_context_length: int = Field(description="The same number.")
    lifecycle: Literal["active"]
    defaults: dict[str, Any] = Field(description="The model's own defaults of parameters.")
    num_labels: int = Field(description="Labels of a classifier; 0: the model is none.")
    generates: bool = Field(description="Whether it generates text; classifiers and encoders do not.")
    input_modalities: list[Literal["text", "image"]] = Field(description="What a request may have.")


class LocalModel(AnswerPart):
    """A model as LM Studio tells of it."""

    id: str
    object: Literal["model"]
    type: Literal["llm", "vlm", "embeddings"] = Field(
        description="Classifiers and encoders are `embeddings`."
    )
    publisher: Literal["quire"]
    arch: Literal[""]
    compatibility_type: Literal["safetensors"]
    quantization: Literal[""]
    state: Literal["loaded"]
    max_context_length: int = Field(description="Tokens of prompt and answer together.")
    loaded_context_length: int = Field(description="The same number.")


class LocalModels(AnswerPart):
    """The answer of GET /api/v0/models."""

    object: Literal["list"]
    data: list[LocalModel]


class PropertiesSettings(AnswerPart):
    """How a request is answered that says nothing of it."""

    n_ctx: int = Field(description="Tokens of prompt and answer together.")
    params: dict[str, Any] = Field(description="The model's own defaults of parameters.")


class Modalities(AnswerPart):
    """What a request may have besides text."""

    vision: bool
    audio: Literal[False]


class Properties(AnswerPart):
    """The answer of GET /props."""

    default_generation_settings: PropertiesSettings
    total_slots: int = Field(description="Requests that may be under way at once.")
    model_alias: str
    model_path: str = Field(description="The same name.")
    modalities: Modalities


class ModelList(AnswerPart):
    """The answer of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelObject]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None


MODELS = (ModelObject, ModelList, LocalModel, LocalModels, Properties)
