"""Fields of a request that nobody knows: taken without effect, counted, and named in the answer's head."""

from collections.abc import Iterable
from urllib.parse import quote

MOST_NAMES = 16
"""Names in the header at most; further ones are an ellipsis."""
MOST_LENGTH = 64
"""Characters of a name in the header at most."""


class Ignored:
    """Names of the fields of one request that are ignored, in the order in which they came."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._more = False

    def note(self, name: str) -> None:
        """Note a field, such as "num_ctx" or "stream_options.colour"."""
        if len(self._names) < MOST_NAMES:
            self._names[_printable(name)] = None
        elif not self._more:
            self._more = _printable(name) not in self._names

    def __bool__(self) -> bool:
        return bool(self._names)

    @property
    def names(self) -> Iterable[str]:
        """The first `MOST_NAMES` of them, in printable ASCII."""
        return self._names

    def header(self) -> str:
        """The names with commas between them: printable ASCII, of bounded length."""
        return ", ".join([*self._names, *["..."] * self._more])


def _printable(name: str) -> str:
    """The name, with everything that could pose as another name or header percent-encoded."""
    return quote(name[:MOST_LENGTH], safe="!#$&'()*+/:;<=>?@[]^`{|}")[:MOST_LENGTH]
