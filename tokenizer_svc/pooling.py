"""How a model makes an embedding of hidden states, according to its directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.runtime.model_files import FileError
from ops.runtime.modules import modules_in
from proto.sampling_pb2 import LAST, MEAN, Pooling
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.files import read_json

_PLACE = "1_Pooling"
"""Folder of the pooling's configuration where modules.json names none."""
_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})
"""Modules of sentence-transformers that are applied. All embeddings are normalized."""
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""A switch for each kind, which sentence-transformers wrote before it wrote their names (5.4)."""
_WAYS = {"mean": MEAN, "lasttoken": LAST}


def ways_in(directory: Path) -> tuple[str, ...]:
    """What makes embeddings of hidden states: kinds of pooling, and modules after it.

    Without a word about it that is the last token's hidden state, the only one that knows a whole text.
    Raises `ModelDirectoryError`.
    """
    try:
        modules = modules_in(directory)
    except FileError as error:
        raise ModelDirectoryError(str(error)) from error
    place = next((module.path for module in modules if module.kind == "Pooling"), _PLACE)
    others = [module.kind for module in modules if module.kind not in _MODULES]
    return (*_modes(read_json(directory / place / "config.json")), *others)


def _modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of pooling in the module's configuration, which has defaults as in sentence-transformers."""
    if not config:
        return ("lasttoken",)
    given = config.get("pooling_mode") or [
        name for key, name in _OLD_MODES.items() if config.get(key) is True
    ]
    modes = [given] if isinstance(given, str) else given
    return tuple(str(mode)[:40] for mode in modes) if isinstance(modes, list) and modes else ("mean",)


def pooling_of(ways: tuple[str, ...]) -> Pooling:
    """The model's own kind of pooling. Raises `InvalidRequestError` if Quire does not have it."""
    if len(ways) == 1 and ways[0] in _WAYS:
        return _WAYS[ways[0]]
    what = " and ".join(ways)
    raise InvalidRequestError(
        "pooling", f"this model's pooling ({what}) is not supported: ask for mean or last"
    )
