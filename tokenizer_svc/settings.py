"""What a tokenizer process can be told."""

from pydantic import Field

from ops.runtime.settings import ModelSettings


class TokenizerSettings(ModelSettings):
    """Settings of a tokenizer process."""

    tokenizer_calls: int = Field(256, ge=1, le=65536)
    """How many requests this process holds at once; more wait at the door."""
