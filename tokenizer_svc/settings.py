"""What a tokenizer process can be told."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ops.settings import ProcessSettings

SHIPPED_MODEL = Path(__file__).parents[1] / "ops" / "tiny_model" / "model"


class TokenizerSettings(ProcessSettings):
    """Settings of a tokenizer process."""

    model: Path = SHIPPED_MODEL
    """Directory of the model, as Hugging Face lays it out; its tokenizer is what is needed here."""

    model_name: str = ""
    """Name under which the model is served. Empty: the name of its directory."""

    tokenizer_calls: int = Field(256, ge=1, le=65536)
    """How many requests this process holds at once; more wait at the door."""

    @model_validator(mode="after")
    def _name_after_directory(self) -> Self:
        if not self.model_name:
            # Frozen against users of the settings, not against their own validation.
            object.__setattr__(self, "model_name", self.model.resolve().name)
        return self
