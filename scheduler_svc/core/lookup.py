"""Drafts without a model: what followed the same tokens earlier (Saxena 2023, "Prompt Lookup Decoding").

    a b c d e f g a b c │ d e f g a b ...         the last three tokens stood there already: go on as there
          ^     └─────┘

Text that quotes, edits, lists or repeats often goes on as it did before.
"""

from array import array

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
