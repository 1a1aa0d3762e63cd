"""GPT-2 and its kin, which have a vocabulary and its merges.

vocab.json               ids of tokens, these in the alphabet of bytes
merges.txt               a pair of tokens in each line, which become one token; earlier lines come first
tokenizer_config.json    the class, by which it is known how text is split
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.model_directory.byte_alphabet import CHARACTERS
from ops.model_directory.files import MOST_SIZE, FileError, read_json, read_text
from ops.model_directory.gguf.splits import COMPOSED, SPLITS
from ops.model_directory.tokenizer_files.added_tokens import CONFIG, added_tokens, config_of, named_token
from ops.model_directory.tokenizer_json import byte_level, tokenizer_json

VOCABULARY = "vocab.json"
MERGES = "merges.txt"

_END = "<|endoftext|>"
_GPT2 = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
_CLASSES: Mapping[str, Mapping[str, str]] = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "Qwen2Tokenizer": {"eos_token": _END, "pad_token": _END, "unk_token": _END},
}
"""Names of tokens that a class has without being told, as transformers has them."""
_SPLITS = {"GPT2Tokenizer": "gpt-2", "CodeGenTokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
"""Names in `SPLITS`."""


def of_merges(directory: Path) -> dict[str, Any]:
    """The files that are made: tokenizer.json, tokenizer_config.json. Raises `FileError`."""
    name, config = config_of(directory, _CLASSES)
    vocabulary = _vocabulary(directory / VOCABULARY)
    merges = _merges(directory / MERGES, vocabulary)
    added = added_tokens(directory, config, vocabulary)
    split = _SPLITS[name]
    prefixed, composed = config.get("add_prefix_space") is True, split in COMPOSED
    model = byte_level(SPLITS[split], vocabulary, merges, composed=composed, prefixed=prefixed)
    first, last = (
        named_token(config, f"{end}_token", vocabulary) if config.get(f"add_{end}_token") is True else None
        for end in ("bos", "eos")
    )
    return {"tokenizer.json": tokenizer_json(added, model, first, last), CONFIG: config}


def _vocabulary(path: Path) -> dict[str, int]:
    found: dict[str, int] = read_json(path)
    for token, number in found.items():
        if type(number) is not int or not 0 <= number <= MOST_SIZE:
            raise FileError(f"{path}: {token[:40]!r}: {str(number)[:40]} is no id of a token")
    if len({*found.values()}) < len(found):
        raise FileError(f"{path}: two tokens have the same id")
    # Of bytes that were not in its text, a vocabulary made with fairseq may lack some.
    if missing := [byte for byte in range(0x20, 0x7F) if CHARACTERS[byte] not in found]:
        raise FileError(f"{path}: no token is {chr(missing[0])!r} alone")
    return found


def _merges(path: Path, vocabulary: Mapping[str, int]) -> list[list[str]]:
    found = []
    for number, line in enumerate(read_text(path).split("\n")):
        if not line or (number == 0 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise FileError(f"{path}: line {number + 1}: {line[:40]!r} are not two tokens that make one")
        found.append(pair)
    return found
