"""What all answers have in common: how they are written as JSON, and how they are described."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict

Json = dict[str, Any]

quoted = json.encoder.encode_basestring_ascii
"""A string as JSON, by C code. It is ASCII: some readers of event streams split lines at U+2028."""

compact = json.JSONEncoder(separators=(",", ":")).encode
"""A value as JSON without spaces."""


class AnswerPart(BaseModel):
    """An answer, or part of one, with all of its fields.

    It is for the OpenAPI document alone: answers themselves are written as text, for speed.
    """

    model_config = ConfigDict(extra="forbid")
