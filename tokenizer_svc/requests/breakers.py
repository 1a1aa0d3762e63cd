"""Which tokens spell the breakers of DRY: texts beyond which no repetition reaches.

    breaker "ab"     ab  cabd           a token that contains it is a breaker by itself
                     a · b    xa · b    a token that ends with a beginning of it, and the tokens of the rest

This is how llama.cpp finds them. What a text stands for is kept.

No vocabulary of 262,144 tokens is looked through for each beginning of a breaker: tokens that end alike are
neighbours in a list that is sorted by their bytes from last to first.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from threading import Lock

from proto.sampling_pb2 import Dry, TokenSequence
from tokenizer_svc.model.tokenizer import TextModel

LONGEST = 40
"""Bytes of a breaker that count."""
MOST_TOKENS = 20
"""Tokens that count of the rest of a breaker."""
KEPT = 64
"""Texts whose tokens are kept."""


class Breakers:
    """The breakers of one model. Any thread may call it."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._lock = Lock()
        self._words: list[bytes] = []
        self._reversed: list[tuple[bytes, int]] = []
        """The bytes of each token from last to first, and its id: sorted."""
        self._found = lru_cache(KEPT)(self._find)

    def add_to(self, dry: Dry, texts: Iterable[str]) -> None:
        """Set the breakers of `dry` to those that the texts stand for. May take a second."""
        single, several = set[int](), set[tuple[int, ...]]()
        with self._lock:
            for text in texts:
                alone, sequences = self._found(text)
                single |= alone
                several |= sequences
        dry.breaker_tokens[:] = sorted(single)
        del dry.breakers[:]
        dry.breakers.extend(TokenSequence(tokens=tokens) for tokens in sorted(several))

    def _find(self, text: str) -> tuple[frozenset[int], frozenset[tuple[int, ...]]]:
        """The tokens that contain a text, and the sequences of tokens that spell it in another way."""
        if not self._words:
            self._words = [self._model.every_token[token] for token in range(self._model.vocab_size)]
            self._reversed = sorted((word[::-1], token) for token, word in enumerate(self._words))
        breaker = text.encode()[:LONGEST]
        alone = frozenset(token for token, word in enumerate(self._words) if breaker in word)
        several = set[tuple[int, ...]]()
        for begin in range(1, len(breaker)):
            rest = self._model.encode(breaker[begin:].decode(errors="ignore"), special=False)
            if rest and self._model.has_rows(rest):
                heads = set(self._ending_with(breaker[:begin])) - alone
                several |= {(token, *rest[:MOST_TOKENS]) for token in heads}
        return alone, frozenset(several)

    def _ending_with(self, end: bytes) -> Iterator[int]:
        """The tokens whose bytes end with these."""
        mirrored = end[::-1]
        for place in range(bisect_left(self._reversed, (mirrored, -1)), len(self._reversed)):
            word, token = self._reversed[place]
            if not word.startswith(mirrored):
                return
            yield token
