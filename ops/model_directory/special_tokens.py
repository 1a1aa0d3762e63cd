"""Special tokens as grammars have them: no text matches such a token, and a grammar names it by its id.

To the library llguidance a token is special if the tokenizer says so, or if it was added and has angle
brackets around it, as `<tool_call>` of Qwen's models. But where a grammar allows one text alone, the library
makes it into tokens as the tokenizer does: a part that is spelled like a special token becomes that token,
which the grammar then refuses. So the library gets a tokenizer in which special tokens have contents that no
text has.
"""

import json
from collections.abc import Collection
from typing import Any

UNWRITTEN = "\ufdd0"
"""Begins each such content: Unicode promises that this is no character of any text."""


def is_special(content: str, flagged: bool) -> bool:
    """Whether an added token is special to a grammar. `flagged`: it is so to the tokenizer."""
    return flagged or (content.startswith("<") and content.endswith(">"))


def unwritten(content: dict[str, Any], rows: int = 0) -> tuple[str, dict[str, int]]:
    """The tokenizer.json in which no text becomes a special token, and the ids of these by their texts.

    `content`: of a tokenizer.json; it changes. `rows`: numbers in a row of logits; an added token
    beyond them is special, too. 0: there is none beyond. Raises `ValueError` for what is no tokenizer.json.
    """
    try:
        added = content.get("added_tokens") or ()
        special = {
            one["content"]: one
            for one in added
            if is_special(one["content"], one["special"]) or 0 < rows <= one["id"]
        }
        ids = {name: int(one["id"]) for name, one in special.items()}
        for name, one in special.items():
            one |= {"content": UNWRITTEN + name, "special": True}
        _rename(content["model"], ids)
        _fill(content, rows)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no tokenizer.json: {error!r}") from error
    return json.dumps(content, ensure_ascii=False), ids


def count_of(content: dict[str, Any]) -> int:
    """How many numbers the tokens of a tokenizer.json have, those included that no token has.

    Raises `ValueError` for what is no tokenizer.json.
    """
    try:
        vocab, added = content["model"]["vocab"], content.get("added_tokens") or ()
        numbers = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
        return int(max((*numbers, *(one["id"] for one in added)), default=-1)) + 1
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no tokenizer.json: {error!r}") from error


def _rename(model: dict[str, Any], names: Collection[str]) -> None:
    """Rename tokens of the model that splits words: BPE has them by number, Unigram in a list with scores."""
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[UNWRITTEN + name if name in names else name, score] for name, score in vocab]
        return
    if not any(name in vocab for name in names):
        return
    model["vocab"] = {UNWRITTEN + name if name in names else name: number for name, number in vocab.items()}
    if model.get("unk_token") in names:
        model["unk_token"] = UNWRITTEN + model["unk_token"]
    model["merges"] = [merge for merge in model.get("merges") or () if _joined(merge) not in names]


def _fill(content: dict[str, Any], rows: int) -> None:
    """Give each number below the highest one, and below `rows`, a token that no text has.

    The library takes the count of tokens for the highest number, and would know none of those behind it:
    o200k, the vocabulary of Phi-4-mini and others, leaves numbers out.
    """
    vocab, added = content["model"]["vocab"], content.get("added_tokens") or []
    if isinstance(vocab, list):
        return
    count = count_of(content)
    missing = set(range(min(count, rows or count))) - {*vocab.values(), *(one["id"] for one in added)}
    if not missing:
        return
    # What is in the model's own vocabulary keeps its number, whatever comes before it.
    vocab |= {one["content"]: one["id"] for one in added}
    kind = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for number in sorted(missing):
        vocab[text := f"{UNWRITTEN}{number}"] = number
        added.append({"id": number, "content": text, "special": True, **kind})
    content["added_tokens"] = added


def _joined(merge: str | list[str]) -> str:
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
