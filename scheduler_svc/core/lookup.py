"""Drafts without a model: what followed the same tokens earlier (Saxena 2023, "Prompt Lookup Decoding").

    a b c d e f g a b c │ d e f g a b ...         the last three tokens stood there already: go on as there
          ^     └─────┘

Text that quotes, edits, lists or repeats often goes on as it did before.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict

ORDER = 3
"""Number of tokens that must be the same."""


class Lookup:
    """Where in a sequence every run of `ORDER` tokens stood last. One dictionary entry for each token."""

    __slots__ = ("_after", "_indexed")

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = ORDER

    def guess(self, tokens: "array[int]", count: int) -> list[int]:
        """Up to `count` tokens that may follow `tokens`; empty if no earlier place is found.

        Between calls `tokens` may only grow. A copy that reaches the end goes on with itself.
        """
        # A run is entered once the token after it is known. So the run at the end finds an earlier one.
        for place in range(self._indexed, len(tokens)):
            self._after[tuple(tokens[place - ORDER : place])] = place
        self._indexed = max(ORDER, len(tokens))
        begin = self._after.get(tuple(tokens[-ORDER:]))
        if begin is None:
            return []
        period = len(tokens) - begin
        return [tokens[begin + number % period] for number in range(count)]

    def anew(self, tokens: "array[int]") -> "Lookup":
        """The same, made of the sequence's tokens alone."""
        found = Lookup()
        found.guess(tokens[: self._indexed], 0)
        return found


class Prediction:
    """A text that an answer is expected to be like, and where the answer is in it.

        predicted   a b c d e f g h i
        answer      a b x d │ e f g ...            where it would be had nothing but c changed: go on as there
        answer      a b x y d e f │ g h i ...      the last three tokens stand there: go on as there

    Of several places the one is taken that is nearest to where the answer would be without further changes.
    """

    __slots__ = ("_answered", "_place", "_places", "_tokens")

    def __init__(self, tokens: "array[int]") -> None:
        self._tokens = tokens
        self._places = defaultdict[tuple[int, ...], list[int]](list)
        """Where each run of `ORDER` tokens ends, in order; empty until the first guess. One run may end at
        every token."""
        self._place = self._answered = 0
        """A place, and how many tokens the answer had there."""

    def guess(self, tokens: "array[int]", prompt: int, count: int) -> "array[int]":
        """Up to `count` tokens that may follow `tokens`, of which the first `prompt` are no answer.

        Empty if the answer is not like the prediction there.
        """
        answered = len(tokens) - prompt
        if answered < ORDER:
            begins_alike = tokens[prompt:] == self._tokens[:answered]
            return self._tokens[answered : answered + count] if begins_alike else array("i")
        if not self._places:
            for end in range(ORDER, len(self._tokens)):
                self._places[tuple(self._tokens[end - ORDER : end])].append(end)
        expected = self._place + answered - self._answered
        if ends := self._places.get(tuple(tokens[-ORDER:])):
            at = bisect_left(ends, expected)
            place = min(ends[max(0, at - 1) : at + 1], key=lambda end: abs(end - expected))
        elif expected <= len(self._tokens) and tokens[-1] == self._tokens[expected - 1]:
            place = expected
        else:
            return array("i")
        self._place, self._answered = place, answered
        return self._tokens[place : place + count]

    def anew(self) -> "Prediction":
        """The same, made of the predicted tokens alone."""
        return Prediction(self._tokens)
