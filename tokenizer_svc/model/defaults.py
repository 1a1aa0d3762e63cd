"""A model's own sampling parameters, from generation_config.json, for requests that leave them out.

The keys mean what they mean to transformers: `do_sample` false is greedy, whatever else there is of
drawing. What is not there is left to the API's own defaults, and so is whether to sample: transformers
would not, but a file that names a temperature and no `do_sample` means that temperature.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proto.sampling import PARAMETERS, Parameter
from proto.sampling_pb2 import FILTER, TEMPERATURE
from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.errors import ModelDirectoryError

log = logging.getLogger(__name__)


_KEYS = {
    "max_new_tokens" if name == "max_tokens" else name: parameter
    for name, parameter in PARAMETERS.items()
    if parameter.model
}
"""The parameters that the file may give, by its keys."""

_IF_SAMPLED = (TEMPERATURE, FILTER)
"""Stages of the parameters that mean nothing where `do_sample` is false."""
_ELSEWHERE = {"do_sample", "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"} | {
    "transformers_version",
    "_from_model_config",
    "use_cache",
    "cache_implementation",
    "return_dict_in_generate",
}
"""Keys that are read elsewhere, or that do not affect what is generated."""


def read_defaults(path: Path, values: Mapping[str, Any]) -> dict[str, float]:
    """The model's own defaults, by the names that parameters have in `proto/sampling.proto`.

    `values`: the content of the file `path`. Keys that are not supported are logged. Raises
    `ModelDirectoryError`, which names the key, for a value out of its range.
    """
    sampled = values.get("do_sample")
    if sampled not in (None, True, False):
        raise ModelDirectoryError(f"{path}: do_sample: {sampled!r} is not true or false")
    defaults = {} if sampled is not False else {"temperature": 0.0}
    for key, parameter in _KEYS.items():
        value = values.get(key)
        if value is None or (sampled is False and parameter.stage in _IF_SAMPLED):
            continue
        if not _accepted(value, parameter):
            kind = "an integer" if parameter.whole else "a number"
            raise ModelDirectoryError(f"{path}: {key}: {value!r} is not {kind} {parameter.model}")
        defaults[parameter.name] = value
    if ignored := [name for name, value in values.items() if _asks_for_something(name, value)]:
        log.warning("%s: not honoured: %s", path, ", ".join(sorted(ignored)))
    return defaults


def fill_in(request: TextRequest, defaults: Mapping[str, float]) -> None:
    """Fill in the model's defaults for parameters that the request leaves out, up to `most_tokens`."""
    for name in request.left_out:
        if name in defaults:
            setattr(request if name == "max_tokens" else request.sampling, name, defaults[name])
    if request.most_tokens and not (
        request.HasField("max_tokens") and request.max_tokens <= request.most_tokens
    ):
        request.max_tokens = request.most_tokens


def _accepted(value: object, parameter: Parameter) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if parameter.whole else (int, float)):
        return False
    return parameter.model is not None and value in parameter.model


def _asks_for_something(name: str, value: object) -> bool:
    if name in _KEYS or name in _ELSEWHERE or name.startswith("output_"):
        return False
    # What a key has when it is switched off: a penalty of 0, a factor of 1, one beam, an empty list.
    return value not in (None, False, 0, 1, "", [], {})
