"""Tokens apart: those that are no text to a grammar, and that a grammar names by their numbers instead.

The library llguidance takes special tokens for such, and all added ones with angle brackets around them, as
`<tool_call>`. But where a grammar leaves no choice it makes the text into tokens as the tokenizer does. If
the text is spelled like a token apart, that is what it becomes, and the grammar refuses it. So the library
is given a tokenizer in which these tokens have contents that stand in no text.
"""

import json
from collections.abc import Collection
from typing import Any

UNWRITTEN = "\ufdd0"
"""Begins each such content: Unicode promises that this is no character of any text."""


def is_apart(content: str, special: bool) -> bool:
    """Whether an added token is apart."""
    return special or (content.startswith("<") and content.endswith(">"))


def unwritten(source: str, rows: int = 0) -> tuple[str, dict[str, int]]:
    """The tokenizer.json in which no text has tokens apart, and their numbers by the contents that they had.

    `rows`: numbers in a row of logits; an added token beyond them is apart, too. 0: there is none beyond.
    Raises `ValueError` for what is no tokenizer.json.
    """
    content = json.loads(source)
    try:
        added = content.get("added_tokens") or ()
        apart = {
            one["content"]: one
            for one in added
            if is_apart(one["content"], one["special"]) or 0 < rows <= one["id"]
        }
        numbers = {name: int(one["id"]) for name, one in apart.items()}
        for name, one in apart.items():
            one |= {"content": UNWRITTEN + name, "special": True}
        _rename(content["model"], numbers)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no tokenizer.json: {error!r}") from error
    return json.dumps(content, ensure_ascii=False), numbers


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


def _joined(merge: str | list[str]) -> str:
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
