"""tokenizer.json and tokenizer_config.json from the values of a GGUF file.

gpt2     byte-level BPE: tokens and merges are in the file; how text is split before is known by name
llama    SentencePiece: tokens with scores; merges follow from these
gemma4   as SentencePiece, with merges in the file
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.model_directory.gguf.file import Gguf
from ops.model_directory.gguf.splits import BEGINS, COMPOSED, SPLITS, WHOLE_MERGES

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens."""

SPACE = "▁"
"""A space, as SentencePiece writes it."""

MOST_CHARACTERS = 4096
"""Characters of a token. Real ones have some hundred at most. Each is cut everywhere to find merges."""

_PIECES = ("llama", "gemma4")
"""Models whose tokens are pieces of text, with marks for spaces."""

_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def tokenizer_of(file: Gguf) -> dict[str, Any]:
    """tokenizer.json. Raises `FileError`."""
    tokens: list[Any] = file.get("tokenizer.ggml.tokens", list, [])
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise file.wrong("tokenizer.ggml.tokens", "a list of texts is needed")
    if (longest := max(map(len, tokens))) > MOST_CHARACTERS:
        raise file.wrong("tokenizer.ggml.tokens", f"one has {longest} characters, {MOST_CHARACTERS} at most")
    types: list[Any] = file.get("tokenizer.ggml.token_type", list, [])
    kind = file.get("tokenizer.ggml.model", str)
    if kind == "gpt2":
        model = _byte_level(file, tokens)
    elif kind in _PIECES:
        tokens = [SPACE * len(token) if token.strip(" ") == "" else token for token in tokens]
        model = _sentence_piece(file, tokens)
    else:
        raise file.wrong("tokenizer.ggml.model", f"{kind!r} is not supported (gpt2, llama, gemma4)")
    special = {UNKNOWN, CONTROL} if kind in _PIECES else {CONTROL}
    vocabulary = model["model"]["vocab"]
    added = [
        {
            "id": number,
            "content": token,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": each in special,
        }
        for number, (token, each) in enumerate(zip(tokens, types, strict=False))
        if each in (*special, USER_DEFINED) and token and vocabulary[token] == number
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **model,
        "post_processor": _post_processor(file, tokens, begins=_begins(file, kind)),
    }


def tokenizer_config_of(file: Gguf) -> dict[str, Any]:
    """tokenizer_config.json: the texts of tokens with a name, and the chat template. Raises `FileError`."""
    tokens: list[Any] = file.get("tokenizer.ggml.tokens", list, [])
    found = {}
    for name, key in _NAMES.items():
        number = _token(file, f"tokenizer.ggml.{name}_token_id", tokens)
        if number is not None:
            found[key] = tokens[number]
    if template := file.get("tokenizer.chat_template", str):
        found["chat_template"] = template
        if for_tools := file.get("tokenizer.chat_template.tool_use", str):
            found["chat_template"] = {"default": template, "tool_use": for_tools}
    return found


def _token(file: Gguf, key: str, tokens: Sequence[str]) -> int | None:
    number: int | None = file.get(key, int)
    if number is not None and not 0 <= number < len(tokens):
        raise file.wrong(key, f"{number}, but there are {len(tokens)} tokens")
    return number


def _byte_level(file: Gguf, tokens: Sequence[str]) -> dict[str, Any]:
    name = file.get("tokenizer.ggml.pre", str, "default")
    if name not in SPLITS:
        raise file.wrong("tokenizer.ggml.pre", f"{name!r} is not supported ({', '.join(SPLITS)})")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    found = byte_level(name, vocabulary, _known_merges(file, vocabulary), whole=name in WHOLE_MERGES)
    return found | {"normalizer": {"type": "NFC"} if name in COMPOSED else None}


def byte_level(
    split: str, vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], whole: bool
) -> dict[str, Any]:
    """Byte-level BPE, as tokenizer.json has it.

    `split`: a name in `SPLITS`. `whole`: a part that is a token is that token, whatever merges say.
    """
    expressions, again = SPLITS[split]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": again}
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in expressions
    ]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": whole,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _sentence_piece(file: Gguf, tokens: Sequence[str]) -> dict[str, Any]:
    gemma = file.get("general.architecture", str, "").startswith("gemma")
    prefixed = file.get("tokenizer.ggml.add_space_prefix", bool, not gemma)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefixed:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _token(file, "tokenizer.ggml.unknown_token_id", tokens)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]} if prefixed else replace,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges_of_pieces(file, vocabulary, gemma),
        },
    }


def _merges_of_pieces(file: Gguf, vocabulary: Mapping[str, int], gemma: bool) -> list[list[str]]:
    """Those of the file, or those that follow from the scores of its tokens."""
    if file.get("tokenizer.ggml.model", str) == "gemma4":
        return _known_merges(file, vocabulary)
    scores: list[Any] = file.get("tokenizer.ggml.scores", list, [])
    if len(scores) != (count := len(file.get("tokenizer.ggml.tokens", list, []))):
        raise file.wrong("tokenizer.ggml.scores", f"{len(scores)}, but there are {count} tokens")
    # Gemma's merges have the order of its tokens, not of their scores.
    return merges_of(vocabulary, [float(-number) for number in range(count)] if gemma else scores)


def _known_merges(file: Gguf, vocabulary: Mapping[str, int]) -> list[list[str]]:
    """Merges of the file, without those of which a token is missing."""
    merges: list[Any] = file.get("tokenizer.ggml.merges", list, [])
    pairs = [pair for merge in merges if len(pair := str(merge).split(" ")) == 2]
    return [
        [left, right]
        for left, right in pairs
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]


def merges_of(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """Every pair of tokens that make a token, the pair of the token with the highest score first."""
    found = []
    for token, number in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[number], vocabulary[left], vocabulary[right], left, right))
    found.sort()
    return [[left, right] for _, _, _, left, right in found]


def _begins(file: Gguf, kind: str) -> bool:
    """Whether texts begin with the bos token."""
    assumed = kind in _PIECES or file.get("tokenizer.ggml.pre", str) in BEGINS
    found: bool = file.get("tokenizer.ggml.add_bos_token", bool, assumed)
    return found


def _post_processor(file: Gguf, tokens: Sequence[str], begins: bool) -> dict[str, Any] | None:
    """Adds the tokens with which a text begins and ends."""
    first = _token(file, "tokenizer.ggml.bos_token_id", tokens) if begins else None
    ends = file.get("tokenizer.ggml.add_eos_token", bool, False)
    last = _token(file, "tokenizer.ggml.eos_token_id", tokens) if ends else None
    if first is None and last is None:
        return None

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        return [
            *([] if first is None else [{"SpecialToken": {"id": tokens[first], "type_id": kind}}]),
            {"Sequence": {"id": sequence, "type_id": kind}},
            *([] if last is None else [{"SpecialToken": {"id": tokens[last], "type_id": kind}}]),
        ]

    added = {number for number in (first, last) if number is not None}
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {
            tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
            for number in sorted(added)
        },
    }
