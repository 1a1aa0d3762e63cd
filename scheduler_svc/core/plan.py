"""The data that go to and come from a worker, and what a result means for the requests.

The fields are those of worker.proto, which explains them; here as lists, there as packed bytes.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_svc.core.beam_search import Candidate
from scheduler_svc.core.errors import SchedulerError
from scheduler_svc.core.request import Finish, Request
from scheduler_svc.core.sequence import Sequence as Running
from scheduler_svc.core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A slot that holds a new sequence."""

    slot: int
    request: Request
    sequence_index: int
    tokens: "array[int]"
    block_ids: Sequence[int]
    forked_from: int = -1
    """Slot of the sequence that it is forked from; -1: of none."""
    forked_tokens: int = 0
    """Tokens that it begins with as that one does, in the blocks that these fill; the others are given."""
    dropped_tokens: int = 0
    """Tokens of the text that the sequence has left behind; see `rolling.py`."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, as a change of the batch that the worker keeps."""

    step: int
    freed_slots: list[int] = field(default_factory=list)
    new_slots: list[NewSlot] = field(default_factory=list)
    block_slots: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    row_slots: list[int] = field(default_factory=list)
    row_starts: list[int] = field(default_factory=list)
    row_counts: list[int] = field(default_factory=list)
    row_samples: list[int] = field(default_factory=list)
    draft_tokens: list[int] = field(default_factory=list)
    cut_slots: list[int] = field(default_factory=list)
    cut_blocks: list[int] = field(default_factory=list)
    copy_sources: list[int] = field(default_factory=list)
    copy_targets: list[int] = field(default_factory=list)
    swap_out_blocks: list[int] = field(default_factory=list)
    swap_out_slots: list[int] = field(default_factory=list)
    swap_in_slots: list[int] = field(default_factory=list)
    swap_in_blocks: list[int] = field(default_factory=list)
    given_slots: list[int] = field(default_factory=list)
    given_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepResult:
    """A worker's answer to one plan."""

    step: int
    tokens: Sequence[int]
    """As many as the rows sample, in row order; -1 for those after drafts that did not hold."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Rows that failed by themselves, and why."""
    candidates: Mapping[int, Sequence[Candidate]] = field(default_factory=dict)
    """What may follow the beams, best first, by index into `tokens`."""
    embeddings: Mapping[int, bytes] = field(default_factory=dict)
    """By row those that are complete with it."""
    duration_us: int = 0
    """What the step took; 0: nobody knows."""


class Fork(NamedTuple):
    """A sequence that is to begin with the first `tokens` positions of another, which has computed them."""

    child: Running
    parent: Running
    tokens: int


class Gain(NamedTuple):
    """A token that a sequence gained, and whether it was the last.

    `token` is -1 for a sequence that ended without one: resumed, it turned out to be complete.
    """

    group: SequenceGroup
    sequence_index: int
    token: int
    finish: Finish
    entry: int
    """Index of the token in the result; -1 without a token, and of a beam."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event means for the requests."""

    gains: list[Gain] = field(default_factory=list)
    failed: list[tuple[SequenceGroup, SchedulerError]] = field(default_factory=list)
    """Groups that an error ended."""
    embedded: list[tuple[SequenceGroup, bytes]] = field(default_factory=list)
    """Groups that ended with their prompts' embeddings."""
