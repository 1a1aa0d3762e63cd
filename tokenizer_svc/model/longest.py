"""How many characters of a text one token can stand for.

A text that is longer than a context full of such tokens cannot fit, and need not be encoded to know it.

The number is certain for tokenizers that keep all characters of a text. Others drop or merge characters: a
normalizer that strips, a split that removes spaces, one unknown token for many characters, an added token
that takes the spaces around it. Those have no such number, and texts are encoded to be counted.
"""

from collections.abc import Mapping
from typing import Any

from ops.model_directory.byte_alphabet import BYTES

_COMPOSED = 4
"""Characters that Unicode's composition (NFC, NFKC) makes one of at most: a letter and three marks."""


def characters_per_token(tokenizer: Mapping[str, Any]) -> int | None:
    """The largest number of characters that one token stands for; None if no number is certain.

    `tokenizer`: the content of tokenizer.json.
    """
    factor = _normalizer_factor(tokenizer.get("normalizer"))
    added = tokenizer.get("added_tokens") or []
    if (
        factor is None
        or not _keeps_all(tokenizer.get("pre_tokenizer"))
        or not _spells_all(tokenizer)
        or any(token.get("lstrip") or token.get("rstrip") for token in added)
    ):
        return None
    # A token's text is never shorter than what it stands for: each character of it is a character or a byte.
    texts = [*tokenizer["model"]["vocab"], *(token["content"] for token in added)]
    return factor * max(map(len, texts), default=1)


def _steps(part: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer."""
    if part is None:
        return []
    if part.get("type") != "Sequence":
        return [part]
    return [one for step in part.get(name, ()) for one in _steps(step, name)]


def _normalizer_factor(part: Mapping[str, Any] | None) -> int | None:
    """Characters of a text that become one character at most."""
    factor = 1
    for step in _steps(part, "normalizers"):
        match step:
            case {"type": "NFC" | "NFKC"}:
                factor *= _COMPOSED
            case {"type": "NFD" | "NFKD" | "Prepend" | "ByteLevel"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if len(old) <= len(
                new
            ):
                pass
            case _:
                return None
    return factor


def _keeps_all(part: Mapping[str, Any] | None) -> bool:
    """Whether splitting a text into words drops no character."""
    for step in _steps(part, "pretokenizers"):
        match step:
            case {"type": "ByteLevel" | "Metaspace" | "Digits"}:
                pass
            case {"type": "Split" | "Punctuation", "behavior": str(behavior)} if behavior != "Removed":
                pass
            case _:
                return False
    return True


def _spells_all(tokenizer: Mapping[str, Any]) -> bool:
    """Whether every text is spelt by tokens, so that none is left out or merged as unknown."""
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        return False
    vocabulary = model["vocab"]
    steps = _steps(tokenizer.get("normalizer"), "normalizers")
    steps += _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
    if any(step.get("type") == "ByteLevel" for step in steps):
        return all(character in vocabulary for character in BYTES)
    return bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
