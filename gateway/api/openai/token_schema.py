"""What clients may ask of the tokenizer alone: request bodies in vLLM's shapes."""

from typing import Any

from pydantic import Field, model_validator

from gateway.api.common.fields import MAX_MESSAGES, MAX_TEMPLATE_LENGTH, Arguments, TokenId
from gateway.api.common.request_schema import RequestBody
from gateway.api.messages.tools import Tools
from gateway.api.openai.chat_schema import ChatBody, Messages
from gateway.api.openai.completions_schema import CompletionBody
from gateway.errors import BadRequest

MAX_TOKENS = 2**19
"""Token ids of one request."""
_OF_A_CHAT = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)


class TokenizeBody(RequestBody):
    """POST /tokenize: a prompt or a conversation."""

    prompt: str | None = Field(None, min_length=1)
    content: str | None = Field(
        None, description="In place of `prompt`, as llama.cpp has it: without special tokens. May be empty."
    )
    add_special: bool = Field(False, description="With `content`: add the tokenizer's own special tokens.")
    messages: Messages | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = Field(
        None, description="Add the tokenizer's own special tokens: by default, not to a conversation."
    )
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str = Field("", max_length=MAX_TEMPLATE_LENGTH)
    chat_template_kwargs: Arguments = Field(default_factory=dict)
    tools: Tools = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeBody":
        if sum(one is not None for one in (self.prompt, self.content, self.messages)) != 1:
            message = "There must be one of 'prompt', 'content' and 'messages'."
            raise BadRequest(message, param="prompt", code="invalid_value")
        if self.messages is None:
            for name in _OF_A_CHAT:
                if name in self.model_fields_set:
                    raise BadRequest(f"'{name}' needs 'messages'.", param=name, code="invalid_value")
        return self

    def asked(self, model: str) -> ChatBody | CompletionBody:
        """The request for an answer that has this prompt."""
        if self.content is not None:
            special = self.add_special or bool(self.add_special_tokens)
            return CompletionBody(model=model, prompt=[self.content], add_special_tokens=special)
        given = {
            name: value
            for name in self.model_fields_set - {"model", "return_token_strs", "add_special"}
            if (value := getattr(self, name)) is not None
        }
        return (CompletionBody if self.messages is None else ChatBody)(model=model, **given)


class DetokenizeBody(RequestBody):
    """POST /detokenize: token ids."""

    tokens: list[TokenId] = Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)

    def asked(self) -> CompletionBody:
        """The request for an answer that begins with the text of these tokens."""
        fields: dict[str, Any] = {"echo": True, "max_tokens": 0, "skip_special_tokens": False}
        return CompletionBody(model=self.model, prompt=[self.tokens], user=self.user, **fields)
