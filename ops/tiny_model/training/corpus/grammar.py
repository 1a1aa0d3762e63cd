"""A small text grammar: sections of beats, choices in brackets, slots in braces.

A grammar file is plain text so that the English can be read and edited as English:

    @plot            a section; its beats are separated by blank lines
    One line.        each beat is one of its lines
    [A|B] other.     brackets choose in place and may nest

    The {kind} left. braces are filled from the slots of the text at hand
"""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

_HERE = Path(__file__).parent
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOUÉé])(?!uni|use|one\b|eu)")

Beats: TypeAlias = list[list[str]]


def read_lines(name: str) -> list[str]:
    """The lines of a data file beside this module, without comments (blank lines stay)."""
    text = (_HERE / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def read_sections(name: str) -> dict[str, Beats]:
    """Section name -> its beats, each a list of alternative lines."""
    sections: dict[str, Beats] = {}
    beats: Beats = []
    fresh = True
    for line in read_lines(name):
        if line.startswith("@"):
            beats = sections.setdefault(line[1:], [])
            fresh = True
        elif not line:
            fresh = True
        else:
            if fresh:
                beats.append([])
                fresh = False
            beats[-1].append(line)
    return sections


def read_questions(name: str) -> list[tuple[list[str], list[str]]]:
    """Lines of "question | question => answer | answer" as pairs of lists."""
    pairs = []
    for line in read_lines(name):
        if line:
            asked, _, answered = line.partition(" => ")
            answers = [answer.replace("\\n", "\n") for answer in answered.split(" | ")]
            pairs.append((asked.split(" | "), answers))
    return pairs


def read_table(name: str) -> dict[str, list[str]]:
    """Lines of "name: member, member" as a mapping."""
    table = {}
    for line in read_lines(name):
        if line:
            key, _, members = line.partition(": ")
            table[key] = members.split(", ")
    return table


def capital(text: str) -> str:
    """The text with its first letter, and only that, in upper case."""
    return text[:1].upper() + text[1:]


def expand(rng: random.Random, text: str, slots: Mapping[str, str]) -> str:
    """Fill slots, draw choices from the inside out, and mend "a owl". `{Name}` is `{name}` capitalised."""

    def fill(match: re.Match[str]) -> str:
        key = match[1]
        return slots[key] if key in slots else capital(slots[key[0].lower() + key[1:]])

    text = _SLOT.sub(fill, text)
    drawn = 1
    while drawn:
        text, drawn = _CHOICE.subn(lambda match: rng.choice(match[1].split("|")), text)
    return _ARTICLE.sub(r"\1n ", text)


def draw(rng: random.Random, beats: Beats, slots: Mapping[str, str]) -> str:
    """One line of every beat, as one paragraph."""
    return " ".join(expand(rng, rng.choice(lines), slots) for lines in beats)
