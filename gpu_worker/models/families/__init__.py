"""The table of architectures: what is the same for all models of a family and stands in no config.json.

A decoder is always the same chain of blocks (`decoder.py`); what differs is which norms stand where, what
is biased, how positions get in, and what the checkpoint calls all of it. A new family of this kind is an
entry in the file of those that it is most like.
"""

from collections.abc import Mapping
from typing import Any

from gpu_worker.models.families import experts, gemma, layer_norms, linear_biases, llama, olmo, parallel
from gpu_worker.models.families.family import Family

__all__ = ["FAMILIES", "Family", "family_of"]

_GROUPS = (llama, gemma, olmo, experts, layer_norms, parallel, linear_biases)

FAMILIES: Mapping[str, Family] = {name: each for group in _GROUPS for name, each in group.FAMILIES.items()}
"""By what config.json calls its architecture."""


def family_of(architecture: str, values: Mapping[str, Any]) -> Family | None:
    """The entry for such a config.json, if there is one."""
    family = FAMILIES.get(architecture)
    return family.fitting(values) if family else None
