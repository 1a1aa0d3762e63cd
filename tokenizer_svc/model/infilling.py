"""Prompts to fill in the middle: laid out so that a model answers with what stands in a text's gap.

A vocabulary has special tokens for that, between which the text before the gap and the text after it stand.
Models learn it from texts cut in three (Bavarian et al. 2022, "Efficient Training of Language Models to
Fill in the Middle"). The tokens are those of StarCoder and Granite, Qwen 2.5 Coder and CodeGemma, DeepSeek
Coder, Code Llama, Codestral and Seed-Coder.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import NamedTuple, Self


class _Marks(NamedTuple):
    """Tokens before what stands before the gap, before what stands after it, and before the answer."""

    before: str
    after: str
    middle: str
    """Empty: the answer goes on with what stands before the gap."""
    after_first: bool = False
    """What stands after the gap comes first."""


_MARKS = (
    _Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    _Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    _Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    _Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    _Marks("▁<PRE>", "▁<SUF>", "▁<MID>"),
    _Marks("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", after_first=True),
    _Marks("[PREFIX]", "[SUFFIX]", "", after_first=True),
)
_REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>")
_FILE = ("<|file_sep|>", "<file_sep>", "<filename>")
_ENDS = (
    *("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "▁<EOT>", "<|file_separator|>"),
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", *_REPOSITORY, *_FILE),
)


@dataclass(frozen=True)
class Infilling:
    """The layout of one model, in tokens."""

    before: int
    """Begins what stands before the gap."""
    after: int
    """Begins what stands after the gap."""
    middle: int | None
    """Begins the answer. None: nothing does."""
    after_first: bool
    """What stands after the gap comes first."""
    repository: int | None
    """Begins the name of a repository. None: there is no such token."""
    file: int | None
    """Begins the name of a file of the repository, on whose next line its text begins."""
    ends: frozenset[int]
    """Each of these ends the answer, besides the model's own end tokens."""
    unwritten: tuple[str, ...]
    """Texts of tokens that no text spells."""

    @classmethod
    def find(cls, vocabulary: Mapping[str, int], special: Iterable[str], rows: int) -> Self | None:
        """The layout that a vocabulary has; None if it has none.

        `special`: texts of the special tokens. `rows`: the model has no token from this id on.
        """
        ids = {name: vocabulary[name] for marks in _MARKS for name in marks[:3] if name in vocabulary}
        ids |= {name: vocabulary[name] for name in _ENDS if name in vocabulary}
        ids = {name: token for name, token in ids.items() if token < rows}
        marks = next((one for one in _MARKS if all(not name or name in ids for name in one[:3])), None)
        if marks is None:
            return None
        return cls(
            before=ids[marks.before],
            after=ids[marks.after],
            middle=ids.get(marks.middle),
            after_first=marks.after_first,
            repository=next((ids[name] for name in _REPOSITORY if name in ids), None),
            file=next((ids[name] for name in _FILE if name in ids), None),
            ends=frozenset(ids.values()),
            unwritten=tuple({*ids, *special}),
        )

    @cached_property
    def _beginnings(self) -> re.Pattern[str]:
        """Matches the first character of each text of `unwritten`, also as it is before it is normalized."""
        rests: dict[str, set[str]] = {}
        for name in self.unwritten:
            for form in (name, name.replace("▁", " "), name.lstrip("▁")):
                if len(form) > 1:
                    rests.setdefault(form[0], set()).add(form[1:])
        # Each alternative begins with a character, so that the search stops at few.
        return re.compile("|".join(f"{re.escape(one)}(?={_any_of(rest)})" for one, rest in rests.items()))

    def parts(self, text: str) -> list[str]:
        """The text in parts, of which none has a whole text of `unwritten`."""
        places = [found.end() for found in self._beginnings.finditer(text)]
        return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def _any_of(texts: Collection[str]) -> str:
    """A pattern that matches where one of these texts begins.

    What several begin with stands in it once, so a search takes no longer with a thousand of them.
    """
    shared = commonprefix([*texts])  # noqa: RUF071 - these are no paths
    if shared in texts:
        return re.escape(shared)
    branches: dict[str, set[str]] = {}
    for text in texts:
        rest = text[len(shared) :]
        branches.setdefault(rest[0], set()).add(rest)
    return f"{re.escape(shared)}(?:{'|'.join(map(_any_of, branches.values()))})"
