"""A step for the worker and the worker's answer, as values; and what an answer means for the requests.

`StepPlan` has the fields of the message in worker.proto, under the same names; the message's comments explain
them. A table is a tuple of columns, all of one length. `StepBuilder` (step_builder.py) makes plans.
"""

from array import array
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_svc.core.beam_search import Candidate
from scheduler_svc.core.draft_state import Forced
from scheduler_svc.core.errors import SchedulerError
from scheduler_svc.core.grammars import NewGrammar
from scheduler_svc.core.images import Image
from scheduler_svc.core.request import Finish, Request
from scheduler_svc.core.sequence import Sequence as Running
from scheduler_svc.core.sequence import SequenceGroup

Ints = tuple[int, ...]


class TableCuts(NamedTuple):
    """Block tables that are cut."""

    slots: Ints
    lengths: Ints


class TableAppends(NamedTuple):
    """Blocks that are added to the ends of block tables."""

    slots: Ints
    blocks: Ints


class GivenTokens(NamedTuple):
    """Tokens that the scheduler has chosen."""

    slots: Ints
    tokens: Ints


class SwapOut(NamedTuple):
    """Blocks that are copied to host memory."""

    blocks: Ints
    host_slots: Ints


class SwapIn(NamedTuple):
    """Blocks that are filled from host memory."""

    host_slots: Ints
    blocks: Ints


class Copies(NamedTuple):
    """Blocks that are copied to other blocks."""

    sources: Ints
    targets: Ints


class Rows(NamedTuple):
    """What the step computes."""

    slots: Ints
    starts: Ints
    counts: Ints
    samples: Ints


class PromptRows(NamedTuple):
    """Rows that report log probabilities of their prompts' tokens."""

    rows: Ints
    firsts: Ints
    counts: Ints


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A slot that holds a new sequence."""

    slot: int
    request: Request
    sequence_index: int
    tokens: "array[int]"
    block_ids: Sequence[int]
    forked_from: int = -1
    """Slot of the sequence that this one is forked from; -1: it is not forked."""
    forked_tokens: int = 0
    """Tokens that it shares with that sequence, in the blocks that they fill; `tokens` go on after them."""
    dropped_tokens: int = 0
    """Tokens of the text that the sequence has left behind; see `rolling.py`."""
    grammar: int = 0
    """Number of its grammar; 0: it has none."""
    sight: int = 0
    """Number by which the worker says that it has seen its images; 0: it need not look at any."""

    @property
    def images(self) -> tuple[Image, ...]:
        """Images that the worker is told of. A fork has those of its parent, which the worker knows."""
        return () if self.forked_tokens else self.request.images


class StepPlan(NamedTuple):
    """One step, as a change of the batch that the worker keeps. Fields are in the order of application."""

    step: int
    freed_slots: Ints = ()
    dropped_grammars: Ints = ()
    new_grammars: tuple[NewGrammar, ...] = ()
    new_slots: tuple[NewSlot, ...] = ()
    table_cuts: TableCuts = TableCuts((), ())
    table_appends: TableAppends = TableAppends((), ())
    given_tokens: GivenTokens = GivenTokens((), ())
    swap_out: SwapOut = SwapOut((), ())
    swap_in: SwapIn = SwapIn((), ())
    copies: Copies = Copies((), ())
    rows: Rows = Rows((), (), (), ())
    draft_tokens: Ints = ()
    prompt_rows: PromptRows = PromptRows((), (), ())


class PromptScores(NamedTuple):
    """Log probabilities of consecutive tokens of a prompt."""

    length: int
    """Number of tokens."""
    values: object
    """What the worker has reported of them, which the scheduler hands on unread."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A worker's answer to one plan."""

    step: int
    tokens: Sequence[int]
    """Sampled tokens in row order, as many for each row as `rows.samples` says; -1 after a rejected draft."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Error message of each row that failed by itself, by the row's index."""
    candidates: Mapping[int, Sequence[Candidate]] = field(default_factory=dict)
    """The most likely next tokens of each beam, best first, by index into `tokens`."""
    embeddings: Mapping[int, bytes] = field(default_factory=dict)
    """Vectors that are complete, packed float32, by the index of the row that completed them."""
    duration_us: int = 0
    """Time the step took in the worker, microseconds; 0: not known."""
    prompt_scores: Mapping[int, PromptScores] = field(default_factory=dict)
    """Log probabilities of prompts' tokens, by the index of the row that reports them."""
    forced: Mapping[int, Forced] = field(default_factory=dict)
    """Tokens that grammars force in the sequences of rows, by the row's index."""
    at_limits: Container[int] = ()
    """Rows of `errors` whose grammars go no further, by index."""


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
    scored: list[tuple[SequenceGroup, PromptScores]] = field(default_factory=list)
    """Log probabilities of the next tokens of groups' prompts."""
