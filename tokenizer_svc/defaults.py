"""What a model's generation_config.json says of requests that leave something out.

The keys mean what they mean to transformers: `do_sample` false is greedy, whatever else there is of
drawing. What is not there is left to the API's own defaults, and so is whether to sample: transformers
would not, but a file that names a temperature and no `do_sample` means that temperature.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.errors import ModelDirectoryError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Key:
    """A key that is honoured: its name in a request, and the values that it may have."""

    name: str
    least: float
    most: float
    whole: bool = False
    draws: bool = True
    """It shapes a draw, and means nothing where nothing is drawn."""

    def accepts(self, value: object) -> bool:
        kind = int if self.whole else (int, float)
        return isinstance(value, kind) and not isinstance(value, bool) and self.least <= value <= self.most


_KEYS = {
    "temperature": _Key("temperature", 0, 100),
    "top_p": _Key("top_p", 1e-30, 1),
    "top_k": _Key("top_k", 0, 2**31 - 1, whole=True),
    "min_p": _Key("min_p", 0, 1),
    "repetition_penalty": _Key("repetition_penalty", 0.01, 100, draws=False),
    "max_new_tokens": _Key("max_tokens", 1, 2**31 - 1, whole=True, draws=False),
}
_ELSEWHERE = {"do_sample", "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"} | {
    "transformers_version",
    "_from_model_config",
    "use_cache",
    "cache_implementation",
    "return_dict_in_generate",
}
"""Keys that are read elsewhere, or say nothing of what is generated."""


def read_defaults(path: Path, values: Mapping[str, Any]) -> dict[str, float]:
    """The defaults, by the names of fields in `SamplingParams`, and `max_tokens`.

    `values`: what the file `path` holds. Keys that ask for what nobody here does are logged. Raises
    `ModelDirectoryError`, with the key, for a value that cannot be.
    """
    sampled = values.get("do_sample")
    if sampled not in (None, True, False):
        raise ModelDirectoryError(f"{path}: do_sample: {sampled!r} is not true or false")
    defaults = {} if sampled is not False else {"temperature": 0.0}
    for name, key in _KEYS.items():
        value = values.get(name)
        if value is None or (key.draws and sampled is False):
            continue
        if not key.accepts(value):
            kind = "an integer" if key.whole else "a number"
            raise ModelDirectoryError(f"{path}: {name}: {value!r} is not {kind} in [{key.least}, {key.most}]")
        defaults[key.name] = value
    if ignored := [name for name, value in values.items() if _asks_for_something(name, value)]:
        log.warning("%s: not honoured: %s", path, ", ".join(sorted(ignored)))
    return defaults


def fill_in(request: TextRequest, defaults: Mapping[str, float]) -> None:
    """Put the model's defaults where the request says that it has nothing of its own."""
    for name in request.left_out:
        if name in defaults:
            setattr(request if name == "max_tokens" else request.sampling, name, defaults[name])


def _asks_for_something(name: str, value: object) -> bool:
    if name in _KEYS or name in _ELSEWHERE or name.startswith("output_"):
        return False
    # What a key has when it is switched off: a penalty of 0, a factor of 1, one beam, an empty list.
    return value not in (None, False, 0, 1, "", [], {})
