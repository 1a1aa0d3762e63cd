"""The bytes that each token stands for.

Of the decoders that tokenizer.json knows, those of language models write a token's bytes whatever
its neighbours are. So decoding is looking up bytes and joining them, which is exact, costs O(1) per
token and leaves incomplete characters to a UTF-8 decoder (see `detokenizer.py`).

Two families cover the field: byte-level BPE, whose tokens spell bytes in a printable alphabet, and
SentencePiece's, whose tokens are text with "▁" for the space and `<0x0A>` for a byte that is no text.
"""

import copy
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Self

from tokenizers import Tokenizer

from ops.model_directory.byte_alphabet import BYTES
from proto.tokenizer_pb2 import TokenText
from tokenizer_svc.errors import ModelDirectoryError
from tokenizer_svc.model.panic import no_panic

Spell = Callable[[str], bytes]
"""A token's text in the vocabulary -> the bytes it stands for."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(dict[int, bytes]):
    """Token id -> bytes, filled as tokens come up. Skipped and unknown tokens have no bytes.

    `drops_space`: text starts without the space that its first token may carry.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        decoder: dict[str, Any] | None,
        skipped: Collection[int],
        words: bool = False,
    ) -> None:
        """`words`: see `speller`."""
        super().__init__()
        self._tokenizer = tokenizer
        self._spell, self.drops_space = speller(decoder, words)
        added = tokenizer.get_added_tokens_decoder()
        self._added = frozenset(added) if _is_byte_level(decoder) else frozenset()
        self._skipped = frozenset(skipped)

    def showing(self, tokens: Collection[int]) -> Self:
        """The same, but `tokens` are not skipped."""
        other = copy.copy(self)
        other.clear()
        other._skipped = self._skipped - frozenset(tokens)
        return other

    def text_of(self, token: int, logprob: float) -> TokenText:
        """The token with its log probability."""
        data = self[token]
        return TokenText(token_id=token, text=data.decode(errors="replace"), utf8=data, logprob=logprob)

    def __missing__(self, token: int) -> bytes:
        with no_panic():
            text = self._tokenizer.id_to_token(token)
        # A model may have more rows than its tokenizer has tokens. Those rows have no text.
        if text is None:
            return b""
        if token in self._skipped:
            data = b""
        elif token in self._added:
            # Added to the vocabulary as text, not in the alphabet that spells bytes.
            data = text.encode()
        else:
            data = self._spell(text)
        self[token] = data
        return data


def speller(decoder: dict[str, Any] | None, words: bool = False) -> tuple[Spell, bool]:
    """The rule of a `decoder` entry of tokenizer.json, and whether it drops the first space.

    `words`: the decoder of WordPiece is taken without its clean-up around punctuation, which depends on
    neighbours. Encoders have it, which write no text.

    Raises `ModelDirectoryError` for a decoder whose tokens depend on their neighbours.
    """
    if decoder is None:
        return lambda text: b" " + text.encode(), True
    if _is_byte_level(decoder):
        return _byte_level, False
    if words and decoder["type"] == "WordPiece":
        return partial(_word_piece, str(decoder.get("prefix", "##"))), True
    drops_space = False
    spell: Spell = str.encode
    # Each step wraps those before it, last step outermost: text steps first, bytes at the end.
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    replaced: list[tuple[str, str]] = []
    for step in steps:
        match step:
            case {"type": "Metaspace", "replacement": str(mark)}:
                replaced.append((mark, " "))
                drops_space = step.get("prepend_scheme", "always") != "never"
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
                replaced.append((pattern, content))
            case {"type": "ByteFallback"}:
                spell = _byte_fallback
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                drops_space = start == 1
            case {"type": "Fuse"}:
                pass
            case _:
                raise ModelDirectoryError(
                    f"tokenizer.json: decoder {step.get('type')} is not supported: {step}"
                )
    return _replacing(replaced, spell), drops_space


def _replacing(replaced: list[tuple[str, str]], spell: Spell) -> Spell:
    def rule(text: str) -> bytes:
        for old, new in replaced:
            text = text.replace(old, new)
        return spell(text)

    return rule


def _word_piece(prefix: str, text: str) -> bytes:
    """A token with the prefix goes on with the word before it. The others begin words."""
    return (text.removeprefix(prefix) if text.startswith(prefix) else f" {text}").encode()


def _byte_fallback(text: str) -> bytes:
    match = BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else text.encode()


def _byte_level(text: str) -> bytes:
    try:
        return bytes([BYTES[character] for character in text])
    except KeyError:
        return text.encode()


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    """Whether tokens spell bytes; a sequence may hold the step alone or with Fuse, which adds nothing."""
    if decoder is None:
        return False
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return [step["type"] for step in steps if step["type"] != "Fuse"] == ["ByteLevel"]
