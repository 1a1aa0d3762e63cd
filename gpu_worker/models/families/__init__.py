"""The table of architectures: what all models of a family have in common and no config.json says.

Every decoder is the same chain of layers (`decoder.py`). Families differ in their norms, biases, positions
and the names of the checkpoint's tensors. A new family is an entry in the file of the families most like it.
"""

from collections.abc import Mapping
from typing import Any

from gpu_worker.models.families import (
    delta_nets,
    experts,
    gemma,
    layer_norms,
    linear_biases,
    llama,
    olmo,
    parallel,
    recurrent,
    state_spaces,
)
from gpu_worker.models.families.family import Family
from ops.model_directory.classifier import ARCHITECTURE as CLASSIFIER

__all__ = ["FAMILIES", "Family", "family_named", "family_of", "is_headless"]

_GROUPS = (
    llama,
    gemma,
    olmo,
    experts,
    recurrent,
    delta_nets,
    state_spaces,
    layer_norms,
    parallel,
    linear_biases,
)

FAMILIES: Mapping[str, Family] = {name: each for group in _GROUPS for name, each in group.FAMILIES.items()}
"""Families by the name of their architecture in config.json."""


_OTHERS = {
    "GPT2ForSequenceClassification": "GPT2LMHeadModel",
    "GPT2Model": "GPT2LMHeadModel",
    "Gemma3TextForSequenceClassification": "Gemma3ForCausalLM",
    "Gemma3TextModel": "Gemma3ForCausalLM",
}
"""Classifiers, and models without a head, whose language models have other names than usual."""

_HEADLESS = "Model"


def is_headless(architecture: str) -> bool:
    """Whether an architecture is that of a language model without its head, which embeds texts."""
    return architecture.endswith(_HEADLESS) and architecture not in FAMILIES


def family_named(architecture: str) -> Family | None:
    """The entry of an architecture. A classifier, and a model without a head, have that of the language model
    of their family."""
    end = _HEADLESS if is_headless(architecture) else CLASSIFIER
    causal = f"{architecture.removesuffix(end)}ForCausalLM" if architecture.endswith(end) else architecture
    return FAMILIES.get(_OTHERS.get(architecture, causal))


def family_of(architecture: str, values: Mapping[str, Any]) -> Family | None:
    """The family of a model with these values in config.json. None: transformers runs it."""
    family = family_named(architecture)
    return family.fitting(values) if family else None
