"""What clients may ask of classifiers: request bodies in vLLM's shapes."""

from pydantic import Field, model_validator

from gateway.api.common.fields import MAX_MESSAGES, Arguments, Inputs
from gateway.api.common.request_schema import RequestBody
from gateway.api.messages.images import has_image
from gateway.api.openai.chat_schema import Messages
from gateway.api.pooling.embeddings_schema import Truncation
from gateway.errors import BadRequest

_OF_A_CHAT = ("add_generation_prompt", "chat_template_kwargs")


class ClassifyBody(RequestBody):
    """POST /v1/classify: texts, or a conversation."""

    input: Inputs = Field(default_factory=list)
    messages: Messages = Field(
        default_factory=list,
        min_length=1,
        max_length=MAX_MESSAGES,
        description="A conversation, which the model's chat template makes one text of.",
    )
    use_activation: bool = Field(
        True, description="With `false` logits are returned, instead of what the model makes of them."
    )
    truncate_prompt_tokens: Truncation = None
    add_generation_prompt: bool = Field(
        False, description="End the text with the beginning of an answer, as the chat template has it."
    )
    chat_template_kwargs: Arguments = Field(
        default_factory=dict, description="Variables of the model's own chat template."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "ClassifyBody":
        if bool(self.input) == bool(self.messages):
            message = "There must be an 'input' or 'messages', and not both."
            raise BadRequest(message, param="input", code="invalid_value")
        if any(has_image(one.content) for one in self.messages):
            refusal = "'messages': images are not supported here."
            raise BadRequest(refusal, param="messages", code="invalid_value")
        for name in _OF_A_CHAT:
            if self.input and name in self.model_fields_set:
                raise BadRequest(f"'{name}' needs 'messages'.", param=name, code="invalid_value")
        if self.messages and self.truncate_prompt_tokens is not None:
            message = "'truncate_prompt_tokens' needs 'input'."
            raise BadRequest(message, param="truncate_prompt_tokens", code="invalid_value")
        return self
