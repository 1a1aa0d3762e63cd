"""How a model pools hidden states into an embedding, according to its directory."""

from collections.abc import Mapping
from typing import Any

from proto.sampling_pb2 import LAST, MEAN, Pooling
from tokenizer_svc.errors import InvalidRequestError

PLACE = "1_Pooling/config.json"
"""File of sentence-transformers, with a switch for each kind of pooling: `"pooling_mode_...": true`."""

_PREFIX = "pooling_mode_"
_WAYS = {"mean_tokens": MEAN, "lasttoken": LAST}


def ways_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of pooling that the file switches on; without a file the last token, as decoders do."""
    found = [
        key.removeprefix(_PREFIX) for key, on in config.items() if key.startswith(_PREFIX) and on is True
    ]
    return tuple(found) or ("lasttoken",)


def pooling_of(ways: tuple[str, ...]) -> Pooling:
    """The model's own kind of pooling. Raises `InvalidRequestError` if Quire does not have it."""
    if len(ways) == 1 and ways[0] in _WAYS:
        return _WAYS[ways[0]]
    what = " and ".join(ways)
    raise InvalidRequestError(
        "pooling", f"this model's pooling ({what}) is not supported: ask for mean or last"
    )
