"""Tokens of byte-level BPE by their ranks: tiktoken's and Mistral's files have no merges.

The two neighbours whose bytes together have the lowest rank are merged, again and again. So every pair of
tokens that make a token is a merge, that of the lowest rank first.
"""

from base64 import b64decode

from ops.model_directory.byte_alphabet import CHARACTERS
from ops.model_directory.tokenizer_json import check_lengths, merges_of

MOST_TOKEN = 1024
"""Bytes of a token. Those of real models have some hundred at most."""


class Ranks:
    """Tokens that come in the order of their ranks."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        """Ranks by the tokens in the alphabet of bytes."""

    def add(self, encoded: str, rank: int) -> None:
        """Add the next token. `encoded`: its bytes in base64. Raises `ValueError`."""
        expected = len(self.tokens)
        content = b64decode(encoded, validate=True)
        if len(content) > MOST_TOKEN:
            raise ValueError(f"{len(content)} bytes are too many for a token")
        if rank != expected:
            raise ValueError(f"the rank is {str(rank)[:20]}, not {expected}")
        self.tokens["".join(CHARACTERS[byte] for byte in content)] = rank
        if len(self.tokens) == expected or not content:
            raise ValueError("the token is empty, or was there before")

    def check(self) -> None:
        """Raise `ValueError` unless each byte is a token, as every text must have tokens, or if there are too
        many long ones."""
        if missing := [byte for byte, character in CHARACTERS.items() if character not in self.tokens]:
            raise ValueError(f"no token is the byte {min(missing)} alone")
        check_lengths(self.tokens)

    def merges(self) -> list[list[str]]:
        """Pairs of tokens, in the order in which they are merged."""
        return merges_of(self.tokens, [-float(rank) for rank in range(len(self.tokens))])
