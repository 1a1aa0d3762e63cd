"""What a replay has found."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Found:
    """How far a replay went."""

    steps: int
    """Steps that were the same."""
    lines: list[str] = field(default_factory=list)
    """The first difference, for a person; empty if there is none."""
