"""Stop strings: found across chunks, and held back while they may be beginning."""

from collections.abc import Iterable


class Node:
    """A beginning of some stop string: one state of the automaton."""

    __slots__ = ("depth", "fallback", "found", "next")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        """Length of the beginning. This number of characters at the end of the text is held back."""
        self.next: dict[str, Node] = {}
        self.fallback: Node = self
        """The longest proper suffix that is a beginning too."""
        self.found = ""
        """The longest stop string that ends here; empty if none does."""


def automaton(strings: Iterable[str]) -> Node:
    """The root of the automaton that finds `strings` (Aho and Corasick, CACM 18(6), 1975)."""
    root = Node(0)
    for string in strings:
        node = root
        for character in string:
            node = node.next.setdefault(character, Node(node.depth + 1))
        node.found = string
    # Breadth first: a node's fallback is nearer to the root than the node.
    queue = list(root.next.values())
    for node in queue:
        node.fallback = root
    for node in queue:
        for character, child in node.next.items():
            child.fallback = _step(node.fallback, character)
            child.found = child.found or child.fallback.found
            queue.append(child)
    return root


def _step(node: Node, character: str) -> Node:
    """The longest beginning that ends with `character` after `node`'s."""
    while (after := node.next.get(character)) is None:
        if node.depth == 0:
            return node
        node = node.fallback
    return after


class StopMatcher:
    """Watches the text of one sequence for stop strings.

    The match that is complete first wins, and of those that end together the longest. That does not
    depend on how the text is cut into chunks, and what was delivered never holds a stop string.
    """

    def __init__(self, root: Node, included: bool = False) -> None:
        """`included`: the text contains the stop string that ends it."""
        self._node = root
        self._included = included
        self._held = ""
        self.found = ""
        """The stop string that ended the text; empty while none did."""

    def add(self, text: str, ends: bool = True) -> str:
        """The text that can be delivered now that `text` has come. Nothing may be added after a match.

        `ends`: a stop string that is complete within `text` ends it.
        """
        node = self._node
        for index, character in enumerate(text):
            node = _step(node, character)
            if ends and node.found:
                self.found = node.found
                whole = self._held + text[: index + 1]
                return whole if self._included else whole[: -len(node.found)]
        self._node = node
        whole = self._held + text
        ready = len(whole) - node.depth
        self._held = whole[ready:]
        return whole[:ready]

    def finish(self) -> str:
        """The text held back, which nothing follows that could make it a stop string."""
        held, self._held = self._held, ""
        return held
