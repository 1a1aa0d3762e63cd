"""Bidirectional encoders: which architectures of config.json are some.

In an encoder each token of a text attends to all of them. It embeds or classifies texts, and generates none.
"""

from collections.abc import Mapping
from typing import Any

from ops.runtime.classifier import ARCHITECTURE as CLASSIFIER

FAMILIES = frozenset(
    {"Bert", "Camembert", "DistilBert", "Electra", "MPNet", "ModernBert", "Roberta", "XLMRoberta"}
)
"""What the names of architectures begin with."""
_GEMMA = "Gemma3Text"
"""A decoder's layers, which are an encoder if config.json says so."""

_HEADS = ("Model", "ForMaskedLM", CLASSIFIER)
"""What they end with. A language model's head, which fills gaps, is of no use here and left out."""


def encoder_family(config: Mapping[str, Any]) -> str | None:
    """The family of `FAMILIES` of the model with this config.json; None if it is no encoder."""
    match config.get("architectures"):
        case ["Gemma3TextModel"]:
            return _GEMMA if config.get("use_bidirectional_attention") is True else None
        case [str(name)]:
            families = (name.removesuffix(head) for head in _HEADS if name.endswith(head))
            return next((family for family in families if family in FAMILIES), None)
    return None
