"""A model's tokenizer.json, completed by the files beside it.

tokenizer_config.json and special_tokens_map.json may mark tokens as added or special ones that tokenizer.json
does not: the end token of Command R+ is such a token. As in transformers, it is found in a text before that
is split, and what `added_tokens_decoder` in tokenizer_config.json says of a token holds.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError, read_json, read_text
from ops.model_directory.tokenizer_files.added_tokens import CONFIG, named_tokens
from ops.model_directory.tokenizer_json import added_token

MOST_BYTES = 2**29
"""Size of a tokenizer.json. Those of the largest vocabularies have some 30 MiB."""

FLAGS = ("special", "single_word", "lstrip", "rstrip", "normalized")


def tokenizer_content(directory: Path) -> tuple[str, dict[str, Any]]:
    """The text of the completed tokenizer.json, and what it spells.

    Raises `FileError`, and `ValueError` for what is no tokenizer.json.
    """
    source = read_text(directory / "tokenizer.json", MOST_BYTES)
    config, content = token_config(directory), json.loads(source)
    try:
        before = {one["content"]: one for one in content.get("added_tokens") or ()}
        after = before | {one["content"]: one for one in _marked(config, content["model"]["vocab"], before)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{directory / 'tokenizer.json'} is not a tokenizer: {error!r}") from error
    if after == before:
        return source, content
    content["added_tokens"] = sorted(after.values(), key=lambda one: int(one["id"]))
    return json.dumps(content, ensure_ascii=False), content


def token_config(directory: Path) -> dict[str, Any]:
    """What the files beside tokenizer.json say of tokens. Raises `FileError`.

    special_tokens_map.json counts where tokenizer_config.json lists no tokens, and goes before it there.
    """
    paths = directory / CONFIG, directory / "special_tokens_map.json"
    config, older = (read_json(path) if path.is_file() else {} for path in paths)
    return config if "added_tokens_decoder" in config else config | older


def _marked(
    config: Mapping[str, Any], vocab: Any, added: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The tokens that the configuration marks. One without an id is left out, unless it has the next one.

    `vocab`: of tokenizer.json, by texts, or a list with scores. `added`: tokens of tokenizer.json.
    """
    entries = (config.get("added_tokens_decoder") or {}).items()
    listed = {one["content"]: (int(key), one) for key, one in entries}
    marked = dict(sorted(listed.items(), key=lambda item: item[1][0]))
    for one in named_tokens(config):
        text = one["content"]
        key, known = listed.get(text, (-1, added.get(text, one)))
        marked[text] = key, {**known, "special": True}
    missing = [each for text, each in marked.items() if not _same(added.get(text), each[1])]
    if not missing:
        return
    ids = {text: number for number, (text, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
    following = max([*ids.values(), *(one["id"] for one in added.values())], default=-1) + 1
    for key, one in missing:
        text = one["content"]
        number = added[text]["id"] if text in added else ids.get(text)
        if number is None and key == following:
            number, following = following, following + 1
        if number is not None:
            yield added_token(number, text, **{name: one.get(name) is True for name in FLAGS})


def _same(known: Mapping[str, Any] | None, one: Mapping[str, Any]) -> bool:
    return known is not None and all(known.get(flag, False) == one.get(flag, False) for flag in FLAGS)
