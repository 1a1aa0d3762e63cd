"""A worker that is set aside for suspects: see `fleet.py`."""

from dataclasses import dataclass, field

from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.core.suspicion import Span, Suspicion


@dataclass(slots=True)
class Isolation:
    """A worker that is set aside for suspects."""

    was_idle: bool
    """It had nothing else to do."""
    suspect: SequenceGroup | None = None
    """Runs there alone; None: the worker comes to rest."""
    outputs: list[int] = field(default_factory=list)
    """Tokens that the suspect's sequences had when it began there."""
    held: dict[SequenceGroup, None] = field(default_factory=dict)
    """Requests of this worker that wait until it is given back."""

    def suspicion_of(self, group: SequenceGroup, spans: dict[int, Span]) -> Suspicion:
        """A group's suspicion once the worker was lost while it computed `spans` of the group's sequences."""
        if group is not self.suspect or group.suspicion is None:
            return Suspicion(spans)
        gains = (each.output_tokens - had for each, had in zip(group.sequences, self.outputs, strict=False))
        return group.suspicion.after_death(spans, max(gains))
