"""Mistral's models of 2025, which have tekken.json.

    config           expression that splits texts, version, sizes
    vocab            tokens of byte-level BPE: rank, bytes in base64
    special_tokens   ids and texts; up to version 7 they may be missing, and are known
    image            sizes of images; `multimodal` in old files

An id below the number of special tokens is that of such a token. A rank follows these. The file may have more
tokens than the model, and fewer special ones. What it does not say is written in the library mistral-common.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.model_directory.files import MOST_SIZE, FileError, read_config, read_json
from ops.model_directory.tokenizer_files.mistral_template import template_of
from ops.model_directory.tokenizer_files.ranks import Ranks
from ops.model_directory.tokenizer_json import added_token, byte_level, tokenizer_json
from ops.model_directory.vision import PROCESSOR_FILES

TEKKEN = "tekken.json"
MOST_SPECIAL = 4096
"""Special tokens. Real files have 1000."""
MOST_PATTERN = 4096
"""Characters of the expression that splits texts."""

_OLD = ("v1", "v2", "v3", "v7")
"""Versions whose files need not list their special tokens."""
_KNOWN = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""The special tokens of such files."""
_CONFIG = "tokenizer_config.json"
_NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/default.jinja")


def of_tekken(directory: Path) -> dict[str, Any]:
    """The files that are made: tokenizer.json, tokenizer_config.json, and settings of the image processor.

    Raises `FileError`.
    """
    path = directory / TEKKEN
    content = read_json(path)
    try:
        config = content["config"]
        special = _special(content, config)
        tokenizer = _tokenizer(content, config["pattern"], special)
        made = {"tokenizer.json": tokenizer, **_processor(directory, content)}
        template = template_of(config["version"], special)
    except KeyError as error:
        raise FileError(f"{path}: there is no {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error
    names: dict[str, Any] = {name: text for name, text in _NAMES.items() if text in special}
    if template is not None and not any((directory / name).exists() for name in _TEMPLATES):
        names["chat_template"] = template
    own = directory / _CONFIG
    return made | {_CONFIG: names | (read_json(own) if own.is_file() else {})}


def _tokenizer(content: Mapping[str, Any], pattern: Any, special: Sequence[str]) -> dict[str, Any]:
    if not isinstance(pattern, str) or len(pattern) > MOST_PATTERN:
        raise ValueError(f"pattern: no expression of at most {MOST_PATTERN} characters")
    ranks = _ranks(content, len(special))
    vocabulary = {text: number for number, text in enumerate(special)}
    for token, rank in ranks.tokens.items():
        if token in vocabulary:
            raise ValueError(f"vocab: token {rank} is a special token, too")
        vocabulary[token] = rank + len(special)
    model = byte_level(((pattern,), False), vocabulary, ranks.merges(), whole=True)
    added = (added_token(number, text, special=True) for number, text in enumerate(special))
    return tokenizer_json(added, model, first=(special.index("<s>"), "<s>"))


def _special(content: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Texts of the special tokens, by their ids."""
    count = _count(config, "default_num_special_tokens", MOST_SPECIAL)
    listed = content.get("special_tokens")
    if listed is None:
        if config["version"] not in _OLD:
            raise KeyError("special_tokens")
        texts = [*_KNOWN]
    else:
        texts = [str(each["token_str"]) for each in listed]
        if [each["rank"] for each in listed] != [*range(len(texts))]:
            raise ValueError("special_tokens: their ranks are not 0, 1, 2 and so on")
    texts += [f"<SPECIAL_{number}>" for number in range(len(texts), count)]
    if len(texts) != count or len({*texts, ""}) != count + 1:
        raise ValueError(f"special_tokens: {len({*texts} - {''})} different texts, but {count} tokens")
    if missing := [name for name in ("<s>", "</s>") if name not in texts]:
        raise ValueError(f"special_tokens: there is no {missing[0]}")
    return texts


def _ranks(content: Mapping[str, Any], special: int) -> Ranks:
    """The tokens that the model has. `special`: number of special tokens, which come before them."""
    listed, ranks = content["vocab"], Ranks()
    if not isinstance(listed, list):
        raise ValueError("vocab: no list")
    size = _count(content["config"], "default_vocab_size", len(listed) + special)
    for number, each in enumerate(listed[: max(0, size - special)]):
        try:
            ranks.add(each["token_bytes"], each["rank"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"vocab: token {number}: {error}") from error
    ranks.check()
    return ranks


def _count(values: Mapping[str, Any], key: str, most: int) -> int:
    value = values[key]
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"{key}: {str(value)[:40]} is no whole number from 1 to {most}")
    return value


def _processor(directory: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the image processor, if the model sees and has none."""
    path = directory / "config.json"
    sees = path.is_file() and isinstance(read_config(path).get("vision_config"), Mapping)
    image = content.get("image") or content.get("multimodal")
    if not sees or not image or any((directory / name).exists() for name in PROCESSOR_FILES):
        return {}
    settings = {
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": _count(image, "image_patch_size", MOST_SIZE),
        "size": {"longest_edge": _count(image, "max_image_size", MOST_SIZE)},
    }
    return {"preprocessor_config.json": settings}
