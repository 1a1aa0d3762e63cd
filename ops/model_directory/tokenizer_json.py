"""The parts of a tokenizer.json, for models that have their tokens in other files."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any

SPACE = "▁"
"""A space, as SentencePiece writes it."""
MOST_CUT = 2**26
"""Characters of the parts into which all tokens are cut to find merges. Mistral's 130,000 tokens have 6
million."""

Split = tuple[Sequence[str], bool]
"""How text is split before byte-level BPE: regular expressions, each of which splits the parts of the one
before it, and whether GPT-2's splits them at last."""
Token = tuple[int, str]
"""A token's id and text."""


def added_token(
    number: int,
    content: str,
    special: bool,
    single_word: bool = False,
    lstrip: bool = False,
    rstrip: bool = False,
    normalized: bool = False,
    **_: Any,
) -> dict[str, Any]:
    """A token that is found in texts before these are split. `number`: its id."""
    flags = {"single_word": single_word, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized}
    return {
        "id": number,
        "content": content,
        **{name: flag is True for name, flag in flags.items()},
        "special": special is True,
    }


def tokenizer_json(
    added: Iterable[Mapping[str, Any]],
    model: Mapping[str, Any],
    first: Token | None = None,
    last: Token | None = None,
) -> dict[str, Any]:
    """The whole file.

    `added`: what `added_token` gives. `model`: what `byte_level` or `pieces` gives.
    `first`, `last`: what begins and ends every text.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        **model,
        "post_processor": _around(first, last),
    }


def byte_level(
    split: Split,
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    whole: bool = False,
    composed: bool = False,
    prefixed: bool = False,
) -> dict[str, Any]:
    """Byte-level BPE.

    `whole`: a part that is a token is that token, whatever merges say. `composed`: text is normalized to NFC.
    `prefixed`: a text that does not begin with a space gets one.
    """
    expressions, again = split
    level = {"type": "ByteLevel", "add_prefix_space": prefixed, "trim_offsets": True, "use_regex": again}
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in expressions
    ]
    return {
        "normalizer": {"type": "NFC"} if composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(vocabulary, merges) | {"ignore_merges": whole},
    }


def pieces(
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    unknown: str | None,
    prefixed: bool,
    once: bool = False,
) -> dict[str, Any]:
    """BPE of SentencePiece, whose tokens are pieces of text and single bytes.

    `prefixed`: a text begins with a space, also one behind an added token. `once`: not behind those.
    """
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    before = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    always = prefixed and not once
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]} if always else replace,
        "pre_tokenizer": before if prefixed and once else None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocabulary, merges)
        | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False},
    }


def check_lengths(tokens: Collection[str]) -> None:
    """Raise `ValueError` if `merges_of` would take more than about a minute or a gigabyte."""
    if sum(len(token) ** 2 for token in tokens) > MOST_CUT:
        length = sum(map(len, tokens))
        raise ValueError(f"{len(tokens)} tokens with {length} characters have too many merges")


def merges_of(
    vocabulary: Mapping[str, int], scores: Sequence[float], defined: Collection[int] = ()
) -> list[list[str]]:
    """Every pair of tokens that make a token, the pair of the token with the highest score first.

    `vocabulary`: tokens that `check_lengths` has let pass. `scores`: of each token, by its id.
    `defined`: ids of tokens that the user has defined. SentencePiece finds these before it merges anything,
    from the left, and at each place the longest one. So their pairs come before all others, those with the
    longest left part first: a run of spaces grows from its left end until no token is longer.
    """
    found = []
    for token, number in vocabulary.items():
        first = number in defined
        score = -inf if first else -scores[number]
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                found.append((score, -cut if first else 0, left, right))
    found.sort()
    texts = {number: token for token, number in vocabulary.items()}
    return [[texts[left], texts[right]] for _, _, left, right in found]


def _bpe(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _around(first: Token | None, last: Token | None) -> dict[str, Any] | None:
    """The post-processor that adds the tokens with which a text begins and ends."""
    if first is None and last is None:
        return None

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        return [
            *([] if first is None else [{"SpecialToken": {"id": first[1], "type_id": kind}}]),
            {"Sequence": {"id": sequence, "type_id": kind}},
            *([] if last is None else [{"SpecialToken": {"id": last[1], "type_id": kind}}]),
        ]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            text: {"id": text, "ids": [number], "tokens": [text]}
            for number, text in filter(None, (first, last))
        },
    }
