"""Bidirectional encoders: which architectures of config.json are some.

In an encoder each token of a text attends to all of them. It embeds or classifies texts, and generates none.
"""

from collections.abc import Mapping
from typing import Any

from ops.model_directory.classifier import ARCHITECTURE as CLASSIFIER

FAMILIES = frozenset(
    {
        *("Albert", "Bert", "Camembert", "ConvBert", "Data2VecText", "Deberta", "DebertaV2", "DistilBert"),
        *("Electra", "Ernie", "EuroBert", "Gte", "JinaEmbeddingsV3", "MPNet", "MegatronBert", "ModernBert"),
        *("NomicBert", "RemBert", "Roberta", "RobertaPreLayerNorm", "Ultrabert", "XLMRoberta"),
        "XLMRobertaXL",
    }
)
"""What the names of architectures begin with."""
_EMBEDDERS = {"EmbeddingGemma2Model": "EmbeddingGemma2", "EmbeddingGemma2TextModel": "EmbeddingGemma2Text"}
"""Families of models that embed and do nothing else. The first one also sees and hears."""
_GEMMA = "Gemma3Text"
"""A decoder's layers, which are an encoder if config.json says so."""

_HEADS = ("Model", "ForMaskedLM", CLASSIFIER)
"""What they end with. A language model's head, which fills gaps, is of no use here and left out."""


def encoder_family(config: Mapping[str, Any]) -> str | None:
    """The family of the model with this config.json, one of `FAMILIES` or another; None if it is no
    encoder."""
    match config.get("architectures"):
        case [str(name)] if name in _EMBEDDERS:
            return _EMBEDDERS[name]
        case ["Gemma3TextModel"]:
            return _GEMMA if config.get("use_bidirectional_attention") is True else None
        case [str(name)]:
            families = (name.removesuffix(head) for head in _HEADS if name.endswith(head))
            return next((family for family in families if family in FAMILIES), None)
    return None
