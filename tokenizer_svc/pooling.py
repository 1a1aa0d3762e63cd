"""How a model's texts are embedded, as far as its directory says."""

from collections.abc import Mapping
from typing import Any

from proto.sampling_pb2 import LAST, MEAN, Pooling
from tokenizer_svc.errors import InvalidRequestError

PLACE = "1_Pooling/config.json"
"""Where sentence-transformers keeps it: a switch for each way, `"pooling_mode_...": true`."""

_PREFIX = "pooling_mode_"
_WAYS = {"mean_tokens": MEAN, "lasttoken": LAST}


def ways_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The ways that a configuration has switched on; with none, that of decoders: the last token."""
    found = [
        key.removeprefix(_PREFIX) for key, on in config.items() if key.startswith(_PREFIX) and on is True
    ]
    return tuple(found) or ("lasttoken",)


def pooling_of(ways: tuple[str, ...]) -> Pooling:
    """The way that the model itself has. Raises `InvalidRequestError` if it is none of ours."""
    if len(ways) == 1 and ways[0] in _WAYS:
        return _WAYS[ways[0]]
    what = " and ".join(ways)
    raise InvalidRequestError(
        "pooling", f"this model's pooling ({what}) is not supported: ask for mean or last"
    )
