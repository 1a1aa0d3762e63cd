"""The settings of a tokenizer process."""

from collections.abc import Mapping

from pydantic import Field, field_validator

from ops.model_directory.settings import ModelSettings
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.entry import NONE
from tokenizer_svc.formats.mark_suffix import Entry, named
from tokenizer_svc.formats.thought_table import THOUGHTS


class TokenizerSettings(ModelSettings):
    """Settings of a tokenizer process."""

    tokenizer_calls: int = Field(1024, ge=1, le=65536)
    """Most requests that this process serves at once; further ones wait at the door."""

    tool_format: str = ""
    """How the model spells calls of functions: a name in `formats/call_table.py`, which may have a suffix as
    in `formats/mark_suffix.py`, or `none`. Empty: as its template tells."""

    reasoning_format: str = ""
    """How the model spells thoughts, as for `tool_format`."""

    client_templates: bool = False
    """Whether a conversation may bring a chat template of its own."""

    @field_validator("tool_format")
    @classmethod
    def _known_tool_format(cls, name: str) -> str:
        return _known(name, CALLS)

    @field_validator("reasoning_format")
    @classmethod
    def _known_reasoning_format(cls, name: str) -> str:
        return _known(name, THOUGHTS)


def _known(name: str, table: Mapping[str, Entry]) -> str:
    if name and name != NONE and named(table, name) is None:
        raise ValueError(f"there is no format '{name}': it is one of {', '.join(table)} or {NONE}")
    return name
