"""How a model makes an embedding of hidden states, according to its directory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.model_directory.dense import dense_in
from ops.model_directory.files import FileError
from ops.model_directory.modules import modules_in
from proto.sampling_pb2 import ALL, CLS, LAST, MEAN, Pooling
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.model.files import read_json

_PLACE = "1_Pooling"
"""Folder of the pooling's configuration where modules.json names none."""
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
_OF_ENCODERS = _WAYS | {"cls": CLS}
"""In a decoder the first token sees no other."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What makes embeddings of hidden states."""

    kinds: tuple[str, ...]
    """Kinds of pooling; none of a model that has a vector for each token."""
    unknown: tuple[str, ...]
    """Modules that Quire has not."""


def ways_in(directory: Path, bidirectional: bool) -> Ways:
    """According to the model's files.

    Without a word about it that is a decoder's last token, the only one that knows a whole text, and an
    encoder's first token, which its heads read. `bidirectional`: the model is an encoder. Raises
    `ModelDirectoryError`.
    """
    try:
        modules = modules_in(directory)
        layers, unknown = dense_in(directory)
    except FileError as error:
        raise ModelDirectoryError(str(error)) from error
    place = next((module.path for module in modules if module.kind == "Pooling"), None)
    if layers and place is None:
        return Ways((), unknown)
    modes = _modes(read_json(directory / (place or _PLACE) / "config.json"))
    return Ways(modes or (("cls",) if bidirectional else ("lasttoken",)), unknown)


def _modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of pooling in the module's configuration, which has defaults as in sentence-transformers.

    Empty without a configuration.
    """
    if not config:
        return ()
    given = config.get("pooling_mode") or [
        name for key, name in _OLD_MODES.items() if config.get(key) is True
    ]
    modes = [given] if isinstance(given, str) else given
    return tuple(str(mode)[:40] for mode in modes) if isinstance(modes, list) and modes else ("mean",)


def pooling_of(ways: Ways, bidirectional: bool) -> Pooling:
    """The model's own kind of pooling. Raises `InvalidRequestError` if Quire does not have it."""
    known = _OF_ENCODERS if bidirectional else _WAYS
    if not ways.unknown and len(ways.kinds) == 1 and ways.kinds[0] in known:
        return known[ways.kinds[0]]
    others = "cls, mean or last" if bidirectional else "mean or last"
    what = f"this model's pooling ({' and '.join(ways.kinds + ways.unknown)}) is not supported"
    if not ways.kinds and not ways.unknown:
        what = "this model has a vector for each token (/pooling), and none for a text"
    raise InvalidRequestError("pooling", f"{what}: ask for {others}")


def check_kind(pooling: Pooling, ways: Ways, bidirectional: bool) -> None:
    """Raise `InvalidRequestError` if a request asks for what the model has not."""
    if pooling == CLS and not bidirectional:
        raise InvalidRequestError(
            "pooling", "the first token of this model sees no other token: ask for mean or last"
        )
    if pooling == ALL and ways.unknown:
        what = " and ".join(ways.unknown)
        raise InvalidRequestError("task", f"this model's vectors of tokens ({what}) are not supported")
