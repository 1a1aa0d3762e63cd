"""Grammars of answers: what the tokenizer service compiles on trial, and the worker follows token by token.

The library llguidance is an Earley parser over lexemes, which are regular expressions. It walks the
vocabulary as a tree of bytes, and finds the tokens that may come next within some microseconds. It counts
its work as fuel, and refuses a grammar that takes more than `LIMITS`. Both services count alike.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, get_version

from ops.model_directory.files import FileError
from ops.model_directory.special_tokens import count_of, unwritten
from ops.model_directory.tokenizer_content import tokenizer_content

LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_items_in_row=2_000,
    max_lexer_states=20_000,
    max_grammar_size=20_000,
    verbose_errors=False,
)
"""Fuel for compiling a grammar (some 50,000 a millisecond), fuel for one token (14,000 a millisecond), parser
items for one token, and for one lexeme of it, lexer states (1 to 2 kB each), and symbols of a grammar. The
items of a lexeme are compared with each other: 2,000 take a millisecond, 5,000 take 9. An object has 4 for
each property that may be left out, a rule has one for each alternative."""

WALKED = 32
"""Steps of an answer that a new grammar is tried with: tokens, and runs of tokens that it forces."""

NICENESS = 10
"""Of a thread that compiles: on a core that a step needs, too, it gets about a tenth of the time."""

_CHARACTER = r'[^"\\\x00-\x1F\x7F]'
SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_CHARACTER}{many}" for many in ("{1,3}", "{1,6}", "{1,10}", "{1,30}", "+")),
]
"""Parts of the vocabulary whose tokens are allowed together wherever an answer may go on with any such text.
The library's own begin with 10 characters. So near the end of a string of bounded length it walks the
vocabulary: 120 microseconds for 50,000 tokens of up to 3 characters, instead of 10."""

VERSION = get_version()
"""Of the library: two versions may allow different tokens."""


class GrammarError(Exception):
    """A grammar, or a vocabulary, that cannot be used. The message says what is wrong, and where."""


class LimitError(GrammarError):
    """A grammar that takes more than `LIMITS` to follow, or that no text follows from here on."""


class Vocabulary:
    """The tokens of a model, as grammars see them. 50,000 tokens take half a second to read, and 40 MB."""

    def __init__(self, directory: Path, size: int, end_tokens: Sequence[int]) -> None:
        """`size`: numbers in a row of logits; 0: as many as there are tokens. `end_tokens`: they are allowed
        where an answer may end.

        Raises `GrammarError` for a tokenizer whose tokens are no texts of their own, or without an end token.
        """
        if not end_tokens:
            raise GrammarError("the model has no end token")
        try:
            _, content = tokenizer_content(directory)
            source, special = unwritten(content, size)
            # A model may have fewer rows than its tokenizer has tokens, as Gemma 3, and the library takes no
            # such number. It would say so when it has read all tokens, which takes 1.6 s of Gemma's.
            rows = {"n_vocab": size} if size >= count_of(content) else {}
            ends = list(end_tokens)
            self._tokenizer = LLTokenizer(source, eos_token=ends, slices=SLICES, **rows)
        except (FileError, ValueError) as error:
            raise GrammarError(f"the model's tokenizer takes no grammars: {error}") from error
        self._rows = size or self._tokenizer.vocab_size
        self.special: Mapping[str, int] = {
            name: token for name, token in special.items() if token < self._rows
        }
        """Ids of the special tokens, by their text; see `special_tokens.py`."""
        self._ends = sum(1 << token for token in set(end_tokens))
        self.words = -(-self._tokenizer.vocab_size // 32)
        """Numbers of 32 bits that have a bit for each token."""

    def matcher(self, grammar: str) -> LLMatcher:
        """Follows a grammar from its beginning. `grammar`: see `Grammar` in sampling.proto.

        Takes some milliseconds, in which other threads run. Raises `GrammarError`.
        """
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise fault_of(matcher)
        return matcher

    def walk(self, matcher: LLMatcher) -> None:
        """Follow a grammar for `WALKED` steps, or to an end.

        Some limits are not met before. Raises `GrammarError` if one is, or if no token can follow.
        """
        with_rows = (1 << self._rows) - 1
        for _ in range(WALKED):
            allowed = int.from_bytes(matcher.compute_bitmask(), "little") & with_rows
            forced = matcher.compute_ff_tokens()
            if matcher.is_error() or not allowed or max(forced, default=0) >= self._rows:
                raise fault_of(matcher)
            if not (goes_on := allowed & ~self._ends):
                return
            matcher.consume_tokens(forced or [goes_on.bit_length() - 1])


def lower_priority() -> None:
    """Let others have the cores before this thread. Only Linux has priorities of threads."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def fault_of(matcher: LLMatcher) -> GrammarError:
    """What is wrong with a grammar that no token can follow.

    It is a `LimitError`, unless the matcher was given a token that the grammar does not allow.
    """
    told: str = matcher.get_error().removesuffix("<non-verbose/>").rstrip()
    if told.startswith("oneOf constraints"):  # what the library advises is no one's to set
        return GrammarError("oneOf of schemas that may hold together is not supported: anyOf is")
    if not told or told.startswith("NoExtension"):
        return LimitError("no text follows it, or finding one takes too long")
    return GrammarError(told) if "doesn't satisfy the grammar" in told else LimitError(told)


def rolls_back(matcher: LLMatcher) -> bool:
    """Whether tokens can be taken back: not where `max_tokens` or `stop` bounds a part of the grammar.

    The matcher stays where it is.
    """
    trial = matcher.deep_copy()
    allowed = int.from_bytes(trial.compute_bitmask(), "little")
    return bool(allowed and trial.consume_token(allowed.bit_length() - 1) and trial.rollback(1))
