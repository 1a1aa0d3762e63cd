"""What one caller may ask for: the holder of an API key, or an address where there are no keys.

As text, limits are `name=value` with spaces between them, as in `requests_per_minute=60 priority=0:10`.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

MOST_SEQUENCES = 128
MOST_TOKENS = 2**20


class LimitsError(ValueError):
    """A text that does not describe limits; the message is one line that names the limit."""


class Limits(BaseModel):
    """Limits on single requests, and on all requests of a caller together. 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sequences: int = Field(MOST_SEQUENCES, ge=1, le=MOST_SEQUENCES)
    """Sequences of one request: prompts times `n`, `best_of` or `beam_width`."""

    answer_tokens: int = Field(MOST_TOKENS, ge=1, le=2**31 - 1)
    """Tokens of one request's answer, all sequences together: sequences times `max_tokens`."""

    logprobs: int = Field(20, ge=-1)
    """Alternatives with each token: `logprobs`, `top_logprobs` and `prompt_logprobs`. -1: any number."""

    seconds: float = Field(0, ge=0, le=86400)
    """Seconds that one request may take."""

    priority: tuple[int, int] = (-(2**31), 2**31 - 1)
    """Lowest and highest `priority` of a request."""

    concurrency: int = Field(0, ge=0)
    """Requests at once."""

    requests_per_minute: int = Field(0, ge=0)

    tokens_per_minute: int = Field(0, ge=0)
    """Tokens of prompts and answers together."""

    @field_validator("priority", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return tuple(value.split(":")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.priority[0] > self.priority[1]:
            raise ValueError("priority: the lowest first, then the highest")
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """The limits that a text gives; the others have their defaults. Raises `LimitsError`."""
        fields: dict[str, Any] = {}
        for part in text.split():
            name, equals, value = part.partition("=")
            if not equals or name in fields:
                raise LimitsError(f"'{part[:100]}': must be name=value, each name once")
            fields[name] = value
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
            name = str(problem["loc"][0]) if problem["loc"] else ""
            if problem["type"] == "extra_forbidden":
                names = ", ".join(cls.model_fields)
                raise LimitsError(f"there is no limit '{name[:100]}'; there are {names}") from None
            raise LimitsError(f"{name}: {problem['msg']}".removeprefix(": ")) from None

    def __str__(self) -> str:
        """The limits that were given, as text."""
        return " ".join(f"{name}={_written(getattr(self, name))}" for name in sorted(self.model_fields_set))

    def replaced_by(self, other: "Limits") -> "Limits":
        """These limits, with those in their place that `other` was given."""
        given = {name: getattr(other, name) for name in other.model_fields_set}
        return self.model_copy(update=given)

    @property
    def counted(self) -> bool:
        """Whether there is a limit on all requests of a caller together."""
        return bool(self.concurrency or self.requests_per_minute or self.tokens_per_minute)


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return ":".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
