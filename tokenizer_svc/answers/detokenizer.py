"""Tokens to text as they come, never half a character."""

import codecs
from collections.abc import Iterable, Sequence

from tokenizer_svc.model.token_bytes import TokenBytes

LONGEST_CHARACTER = 4
"""Bytes of a UTF-8 character at most."""

CONTEXT = 16
"""Tokens of the prompt's end that are looked at. Enough for a character's bytes among skipped tokens."""

_utf8 = codecs.getincrementaldecoder("utf-8")
_CONTINUATIONS = bytes(range(0x80, 0xC0))
"""Bytes with which no character begins."""


class Detokenizer:
    """The text of one sequence: what its tokens add to the text of its prompt.

    Bytes that are no UTF-8 become U+FFFD, one for each maximal subpart (Unicode 16, section 3.9), as
    soon as it is certain that they are none. A character that the prompt's tokens began and the
    output's complete belongs to the output. Each token costs the same, however long the text is.
    """

    def __init__(self, token_bytes: TokenBytes, prompt: Sequence[int]) -> None:
        self._bytes = token_bytes
        self._decoder = _utf8(errors="replace")
        tail = b""
        for token in reversed(prompt[-CONTEXT:]):
            tail = token_bytes[token] + tail
            if len(tail) >= LONGEST_CHARACTER:
                break
        self._decoder.decode(_from_first_character(tail[-LONGEST_CHARACTER:]))
        # Only a text that starts here drops its first space.
        self._drops_space = token_bytes.drops_space and not any(token_bytes[token] for token in prompt)

    def add(self, tokens: Iterable[int]) -> str:
        """The text that `tokens` complete."""
        table = self._bytes
        text = self._decoder.decode(b"".join([table[token] for token in tokens]))
        if self._drops_space and text:
            self._drops_space = False
            text = text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """What is left once no token follows: U+FFFD if a character is incomplete."""
        return self._decoder.decode(b"", final=True)


class NoText(Detokenizer):
    """Of a sequence whose tokens alone are wanted."""

    def __init__(self) -> None:
        pass

    def add(self, tokens: Iterable[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


def _from_first_character(data: bytes) -> bytes:
    """`data` without the end of a character that began before it."""
    return data.lstrip(_CONTINUATIONS)
