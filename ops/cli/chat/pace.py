"""How fast an answer came."""

import time

from ops.cli.chat.server import Delta

AT_ONCE_SECONDS = 0.1
"""What comes within a shorter time came at once, as after a pause of the network, and has no rate."""


class Pace:
    """Counts and times the deltas of one answer, from now on."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._first = self._last = 0.0
        self._pieces = self._tokens = 0
        self._finish = ""

    def count(self, delta: Delta) -> None:
        if delta.text or delta.thought or delta.tool:
            self._last = time.monotonic()
            self._first = self._first or self._last
            self._pieces += 1
        self._tokens = delta.tokens or self._tokens
        self._finish = delta.finish or self._finish

    def summary(self) -> str:
        """One line: tokens, their rate after the first one, and the time to it; empty if nothing came."""
        if not self._pieces:
            return ""
        # A server that says no number, or an answer that was stopped: usually a piece is a token.
        tokens = self._tokens or self._pieces
        parts = [f"{tokens} tokens" if tokens != 1 else "1 token"]
        if tokens > 1 and self._last - self._first >= AT_ONCE_SECONDS:
            parts.append(f"{(tokens - 1) / (self._last - self._first):.1f} tokens/s")
        parts.append(f"first after {self._first - self._begin:.2f} s")
        if self._finish == "length":
            parts.append("cut off at the limit of tokens")
        return ", ".join(parts)
