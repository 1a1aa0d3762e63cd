"""Lays out a text with a gap in tokens."""

from collections.abc import Iterator

from proto.tokenizer_pb2 import Infill
from tokenizer_svc.model.infilling import Infilling
from tokenizer_svc.model.tokenizer import TextModel

_BEFORE = "☺"
"""Stands before a text, so that the tokenizer does not begin it with a space of its own."""


def laid_out(model: TextModel, layout: Infilling, gap: Infill, special: bool) -> list[int]:
    """The prompt. `special`: the tokenizer's own begin token is added.

    What the client writes never becomes a special token, whatever it spells.
    """
    before = [layout.before, *_text(model, layout, gap.before)]
    after = [layout.after, *_text(model, layout, gap.after, begins=False)]
    middle = () if layout.middle is None else (layout.middle,)
    first, then = (after, before) if layout.after_first else (before, after)
    begin = model.begin_tokens() if special else ()
    return [*begin, *_files(model, layout, gap), *first, *then, *middle]


def _files(model: TextModel, layout: Infilling, gap: Infill) -> Iterator[int]:
    """The other files, and the beginning of the one with the gap."""
    if not gap.files:
        return
    if layout.repository is not None:
        yield layout.repository
        yield from _text(model, layout, "project\n")
    for file in gap.files:
        if layout.file is not None:
            yield layout.file
        text = file.text.removesuffix("\n")
        yield from _text(model, layout, f"{file.name}\n{text}\n")
    if layout.file is not None:
        yield layout.file
        yield from _text(model, layout, "file\n")


def _text(model: TextModel, layout: Infilling, text: str, begins: bool = True) -> list[int]:
    """A client's text as tokens. `begins`: the tokenizer may begin it with a space of its own."""
    first, *rest = layout.parts(text)
    if begins:
        return [*model.encode(first, special=False), *_within(model, rest)]
    return _within(model, [first, *rest])


def _within(model: TextModel, parts: list[str]) -> list[int]:
    """The tokens of texts that do not begin with a space of the tokenizer's own."""
    before = model.encode(_BEFORE, special=False)
    if not (model.tokenizer.id_to_token(before[0]) or "").startswith("▁"):
        return [token for tokens in model.encode_each(parts) for token in tokens]
    found: list[int] = []
    for part, tokens in zip(parts, model.encode_each([_BEFORE + part for part in parts]), strict=True):
        apart = tokens[: len(before)] == before
        found += tokens[len(before) :] if apart else model.encode(part, special=False)
    return found
