"""Sequences, the groups they form, and the states they go through.

                    admitted          last chunk planned
    WAITING ──────────────────▶ PREFILL ──────────▶ DECODE ──▶ DONE (from any state)
      │  ▲ no room              │ ▲  ▲                  │
      ▼  │             preempted ▼ │  │                  │ preempted
      FORK ──────────┐     PREEMPTED ─┼──────────────────┘
                     └────────────────┘
                 takes over another's blocks

A sequence that has filled its context, of a request that goes on then (`rolling.py`), is preempted by itself.
When a worker is lost, whatever is not DONE is WAITING again, for another worker. A beam that is given up for
the fork of another goes from PREFILL or DECODE to FORK.
"""

from array import array
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from scheduler_svc.core import rolling
from scheduler_svc.core.errors import IllegalTransition
from scheduler_svc.core.request import Finish, Request
from scheduler_svc.core.table import BlockTable

if TYPE_CHECKING:
    from scheduler_svc.core.beams import Beams
    from scheduler_svc.core.drafting import Pace

Age = tuple[float, int, int]
"""(measure, arrival, index): lower is older. The measure is the policy's."""

Watch = Callable[["Sequence"], None]
"""Is told of a sequence that has just begun, or changed its state."""


class State(Enum):
    WAITING = "waiting"
    FORK = "fork"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    DONE = "done"


LEGAL: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.FORK, State.PREFILL, State.DONE}),
    State.FORK: frozenset({State.PREFILL, State.WAITING, State.DONE}),
    State.PREFILL: frozenset({State.DECODE, State.FORK, State.PREEMPTED, State.WAITING, State.DONE}),
    State.DECODE: frozenset({State.FORK, State.PREEMPTED, State.WAITING, State.DONE}),
    State.PREEMPTED: frozenset({State.PREFILL, State.WAITING, State.DONE}),
    State.DONE: frozenset(),
}


class Sequence:
    """One continuation of a prompt.

        tokens     0 ........................... len(tokens)          confirmed
        computed   0 .............. computed                          keys and values confirmed
        planned    0 .......................................planned   with what is in flight

    `planned` runs ahead of `tokens` when a planned row uses a token that is still in flight.
    """

    __slots__ = (
        "admission_cost",
        "admitted_output",
        "age",
        "chain",
        "computed",
        "drafted",
        "dropped_tokens",
        "epoch",
        "group",
        "index",
        "pace",
        "planned",
        "slot",
        "state",
        "table",
        "tokens",
        "told",
    )

    def __init__(self, group: "SequenceGroup", index: int, output: "array[int]") -> None:
        self.group = group
        self.index = index
        self.age: Age = (group.measure, group.arrival, index)
        """Older is never preempted for younger to grow."""
        self.tokens = group.request.prompt + output
        """Prompt and confirmed output, as far as they are in the context."""
        self.dropped_tokens = 0
        """Tokens of the text that the sequence has left behind; see `rolling.py`."""
        self.state = State.WAITING
        self.slot = -1
        """Row of the worker's batch; -1 = none."""
        self.table: BlockTable | None = None
        """Held exactly as long as a slot."""
        self.epoch = 0
        """Raised whenever the slot is given up; results planned under an earlier one are dropped."""
        self.computed = 0
        self.planned = 0
        self.admitted_output = 0
        """Output tokens that were known when it got its slot."""
        self.admission_cost = 0
        """Tokens that had to be computed then: those that were known, and not in the cache."""
        self.drafted = 0
        """Drafts in flight; with some it cannot be planned further."""
        self.pace: Pace | None = None
        """What drafts have brought, once some were thought of."""
        self.told = 0
        """Of a beam: tokens that the worker has been told of."""
        self.chain: list[bytes] = []
        """Names of the full blocks from the head on, as far as they have been needed."""

    def move(self, to: State) -> None:
        """The one way to change state; what comes of it, comes afterwards. Raises `IllegalTransition`."""
        if to not in LEGAL[self.state]:
            raise IllegalTransition(
                f"{self.group.request.request_id}[{self.index}]: {self.state.value} to {to.value}"
            )
        self.state = to
        if self.group.watch is not None:
            self.group.watch(self)

    @property
    def waits(self) -> bool:
        """It is to be given a slot."""
        return self.state is State.WAITING or self.state is State.PREEMPTED

    @property
    def about_to_end(self) -> bool:
        """Its last token is in flight: it gives its blocks up by itself, sooner than if it were preempted."""
        return self.planned + 1 >= self.group.limit and self.computed < self.planned

    @property
    def output_tokens(self) -> int:
        """How many tokens it has generated so far."""
        return self.dropped_tokens + len(self.tokens) - len(self.group.request.prompt)

    def ending(self) -> Finish:
        """Whether the newest confirmed token is the last one, and why."""
        request, tokens = self.group.request, self.tokens
        if tokens[-1] in request.stop_token_ids and self.output_tokens > 0:
            return Finish.STOP
        if request.rolling:
            full = 0 < request.max_tokens <= self.output_tokens
        else:
            full = len(tokens) >= self.group.limit
        return Finish.LENGTH if full else Finish.NOT_FINISHED

    def roll(self) -> None:
        """Leave behind what a text of its length does; it holds no blocks."""
        count = rolling.dropped(self.dropped_tokens + len(self.tokens), self.group.limit)
        if count > self.dropped_tokens:
            self.tokens = rolling.kept(self.tokens, count - self.dropped_tokens)
            self.dropped_tokens = count
            self.chain = []
            self.pace = None


class SequenceGroup:
    """The sequences of one request, and what is known of them together.

    The first that is not done leads: it computes the prompt while the others are held back, and then fork
    from it: they share its blocks, and of the last one, if it is partly filled, they get a copy.
    """

    __slots__ = (
        "arrival",
        "beams",
        "cached_tokens",
        "drafts",
        "drafts_held",
        "fruitless",
        "gained",
        "held",
        "limit",
        "measure",
        "request",
        "sequences",
        "unfinished",
        "watch",
    )

    def __init__(self, request: Request, arrival: int, watch: Watch | None = None) -> None:
        self.request = request
        self.watch = watch
        self.arrival = arrival
        self.limit = 0
        """Longest a sequence may get, prompt included; set when the group is accepted."""
        self.measure = 0.0
        """What the policy orders groups by, before arrival; see `take_up`."""
        self.cached_tokens: int | None = None
        """Prompt tokens that came out of the prefix cache when the first sequence was first admitted."""
        self.drafts = self.drafts_held = 0
        """Drafts that were verified, and those of them that held."""
        self.fruitless = 0
        """Workers in a row that were lost while they worked on the group, before it gained a token there."""
        self.gained = False
        """A token was gained on the present worker."""
        so_far = {entry.index: entry for entry in request.resumed}
        self.beams: Beams | None = None
        """The search, if one is asked for, once it is on a worker."""
        self.sequences = []
        # A search begins with one beam; what it has delivered, it has delivered at its end.
        searches = request.beams is not None and not request.resumed
        for index in range(1 if searches else request.n):
            known = so_far.get(index)
            sequence = Sequence(self, index, known.tokens if known else array("i"))
            if watch is not None:
                watch(sequence)
            if known and known.finished:
                sequence.move(State.DONE)
            self.sequences.append(sequence)
        self.unfinished = sum(1 for sequence in self.sequences if sequence.state is not State.DONE)
        self.held: list[Sequence] = []

    def take_up(self, measure: float) -> None:
        """A worker gets the group: there its sequences are as old as the measure says."""
        self.measure = measure
        for sequence in self.sequences:
            sequence.age = (measure, self.arrival, sequence.index)

    def add_sequence(self) -> Sequence:
        """One more, that knows nothing yet and is about to fork from another."""
        sequence = Sequence(self, len(self.sequences), array("i"))
        sequence.move(State.FORK)
        self.sequences.append(sequence)
        self.unfinished += 1
        return sequence

    def alive(self) -> list[Sequence]:
        """The sequences that are not done, in order."""
        return [sequence for sequence in self.sequences if sequence.state is not State.DONE]

    def end_waiting(self, index: int) -> None:
        """End a sequence that no scheduler has in hand."""
        sequence = self.sequences[index]
        if sequence.state is not State.DONE:
            sequence.move(State.DONE)
            self.unfinished -= 1
