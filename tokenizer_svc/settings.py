"""The settings of a tokenizer process."""

from pydantic import Field

from ops.runtime.settings import ModelSettings


class TokenizerSettings(ModelSettings):
    """Settings of a tokenizer process."""

    tokenizer_calls: int = Field(256, ge=1, le=65536)
    """Most requests that this process serves at once; further ones wait at the door."""
