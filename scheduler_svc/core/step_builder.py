"""A plan in the making: the planner adds to it, `finish` makes the immutable plan."""

from collections.abc import Iterable
from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from typing import Any

from scheduler_svc.core.alternatives import MOST
from scheduler_svc.core.blocks import NamedBlock
from scheduler_svc.core.grammars import NewGrammar
from scheduler_svc.core.host import Swaps
from scheduler_svc.core.plan import (
    Copies,
    GivenTokens,
    NewSlot,
    PromptRows,
    Rows,
    StepPlan,
    SwapIn,
    SwapOut,
    TableAppends,
    TableCuts,
)
from scheduler_svc.core.sequence import Sequence

Pairs = list[tuple[int, int]]
"""The lines of a table of two columns."""

MOST_NEW_BYTES = 2**20
"""Of the sequences to which one step gives slots, the last not counted: a plan is a message."""
MOST_NEW_NAMES = 4096
"""Names of blocks that one step makes for sequences that wait, those of the last not counted. To make these
takes 25 ms, for which every other request waits. Names that are looked up for a sequence which then waits for
another's blocks count less, see `admit.LOOKED_UP`: there may be thousands of such sequences."""


@dataclass(slots=True)
class StepBuilder:
    """One step as planned so far."""

    step: int
    """Number of the plan."""
    budget: int
    """Tokens that may still be planned."""
    sequences: list[Sequence] = field(default_factory=list)
    """The sequence of each row."""
    alternatives: int = 0
    """Alternatives that the step reports, and numbers of vectors, see `alternatives.py`."""
    new_bytes: int = 0
    """Size of `new_slots`, and of the grammars of the sequences in them."""
    new_names: int = 0
    """Names of blocks that were made or looked up for sequences that wait; see `MOST_NEW_NAMES`."""
    seated: set[Sequence] = field(default_factory=set)
    """Sequences with a new slot, and those from which others fork: none may lose its slot in this step."""
    embedded: list[int] = field(default_factory=list)
    """Indices of rows that complete vectors; nothing is sampled after them."""
    searches: bool = False
    """Whether rows may be beams."""
    named_blocks: list[NamedBlock] = field(default_factory=list)
    """Blocks that get names when the plan has been made."""
    freed_slots: list[int] = field(default_factory=list)
    dropped_grammars: tuple[int, ...] = ()
    new_grammars: tuple[NewGrammar, ...] = ()
    new_slots: list[NewSlot] = field(default_factory=list)
    _table_cuts: Pairs = field(default_factory=list)
    _append_slots: list[int] = field(default_factory=list)
    _append_blocks: list[int] = field(default_factory=list)
    _given_tokens: Pairs = field(default_factory=list)
    _swap_out: Pairs = field(default_factory=list)
    _swap_in: Pairs = field(default_factory=list)
    _copies: Pairs = field(default_factory=list)
    _row_slots: list[int] = field(default_factory=list)
    _row_starts: list[int] = field(default_factory=list)
    _row_counts: list[int] = field(default_factory=list)
    _row_samples: list[int] = field(default_factory=list)
    _draft_tokens: list[int] = field(default_factory=list)
    _prompt_rows: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether the plan neither computes a row nor gives a sequence a slot or a block."""
        return not (self.sequences or self.new_slots or self._append_slots)

    @property
    def may_seat(self) -> bool:
        """Whether the plan has room for another new slot."""
        return self.new_bytes <= MOST_NEW_BYTES

    @property
    def may_name(self) -> bool:
        """Whether the plan may look at another sequence that waits."""
        return self.new_names <= MOST_NEW_NAMES

    def seat(self, new: NewSlot) -> None:
        """A slot holds a new sequence."""
        self.new_slots.append(new)
        self.new_bytes += 4 * (len(new.tokens) + len(new.block_ids))
        if not new.forked_tokens:  # the worker has the rest with the parent
            self.new_bytes += new.request.plan_bytes

    def begin_of(self, sequence: Sequence) -> int:
        """First position of the sequence that the step computes, or that it does not compute yet."""
        if sequence in self.sequences:
            return self._row_starts[self.sequences.index(sequence)]
        return sequence.planned

    def cut_table(self, slot: int, length: int) -> None:
        """The slot's block table keeps its first `length` blocks."""
        self._table_cuts.append((slot, length))

    def append_blocks(self, slot: int, blocks: list[int]) -> None:
        """The slot's block table gains `blocks` at its end."""
        self._append_slots.extend([slot] * len(blocks))
        self._append_blocks.extend(blocks)

    def drop_appends(self, slot: int) -> None:
        """The slot is free again: what its table was to gain has gone back."""
        if slot in self._append_slots:
            appends = zip(self._append_slots, self._append_blocks, strict=True)
            kept = [each for each in appends if each[0] != slot]
            self._append_slots = [each for each, _ in kept]
            self._append_blocks = [block for _, block in kept]

    def give_token(self, slot: int, token: int) -> None:
        """The slot's next token is `token`."""
        self._given_tokens.append((slot, token))

    def swap(self, swaps: Swaps) -> None:
        """Move contents of blocks to host memory and back."""
        self._swap_out, self._swap_in = swaps

    def copy_blocks(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Copy each source to its target."""
        self._copies.extend(zip(sources, targets, strict=True))

    @property
    def tokens(self) -> int:
        """Tokens that have been planned."""
        return sum(self._row_counts)

    def set_decodes(self, sequences: list[Sequence]) -> None:
        """The step's first rows: each computes its sequence's last planned position, and samples."""
        self.sequences[:] = sequences
        self._row_slots = [sequence.slot for sequence in sequences]
        self._row_starts = [sequence.planned - 1 for sequence in sequences]
        self._row_counts = [1] * len(sequences)
        self._row_samples = [1] * len(sequences)
        self.budget -= len(sequences)

    def add_drafts(self, row: int, tokens: Series[int]) -> None:
        """The row verifies `tokens`, too. To be called in the order of the rows."""
        self._row_counts[row] += len(tokens)
        self._row_samples[row] += len(tokens)
        self._draft_tokens.extend(tokens)
        self.budget -= len(tokens)

    def add_chunk(self, sequence: Sequence, start: int, count: int, samples: bool) -> None:
        """A row of `count` known tokens from position `start` on; whether a token is sampled after them."""
        self.sequences.append(sequence)
        self._row_slots.append(sequence.slot)
        self._row_starts.append(start)
        self._row_counts.append(count)
        self._row_samples.append(int(samples))
        self.budget = max(0, self.budget - count)  # a whole image may have more

    def report_prompt(self, first: int, count: int, alternatives: int) -> None:
        """The newest row reports log probabilities of `count` tokens of its prompt, from `first` on.

        `alternatives`: of all of them together.
        """
        self._prompt_rows.append((len(self.sequences) - 1, first, count))
        self.alternatives += alternatives

    def may_report(self, alternatives: int) -> bool:
        """Whether a row may report this number of alternatives; they are counted if so."""
        if not self.has_room(alternatives):
            return False
        self.alternatives += alternatives
        return True

    def has_room(self, alternatives: int) -> bool:
        """Whether the step's result has room for this number of alternatives; the first always has."""
        return not self.alternatives or self.alternatives + alternatives <= MOST

    def finish(self) -> StepPlan:
        """The plan. An empty table is the default of its field, so that the usual step makes few objects."""
        tables: dict[str, Any] = {
            name: table(*zip(*pairs, strict=True))
            for name, table, pairs in (
                ("table_cuts", TableCuts, self._table_cuts),
                ("given_tokens", GivenTokens, self._given_tokens),
                ("swap_out", SwapOut, self._swap_out),
                ("swap_in", SwapIn, self._swap_in),
                ("copies", Copies, self._copies),
                ("prompt_rows", PromptRows, self._prompt_rows),
            )
            if pairs
        }
        return StepPlan(
            self.step,
            tuple(self.freed_slots),
            self.dropped_grammars,
            self.new_grammars,
            tuple(self.new_slots),
            table_appends=TableAppends(tuple(self._append_slots), tuple(self._append_blocks)),
            rows=Rows(
                tuple(self._row_slots),
                tuple(self._row_starts),
                tuple(self._row_counts),
                tuple(self._row_samples),
            ),
            draft_tokens=tuple(self._draft_tokens),
            **tables,
        )
