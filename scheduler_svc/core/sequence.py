"""Sequences, the groups they form, and the states they go through.

                    admitted          last chunk planned
    WAITING ──────────────────▶ PREFILL ──────────▶ DECODE ──▶ DONE (from any state)
      │  ▲ no room              │ ▲  ▲                  │
      ▼  │             preempted ▼ │  │                  │ preempted
      FORK ──────────┐     PREEMPTED ─┼──────────────────┘
                     └────────────────┘
                 takes over another's blocks

A sequence that rolls (`rolling.py`) is preempted when it has filled its context. When a worker is lost, every
sequence that is not DONE is WAITING again, for another worker. A beam whose place another beam takes goes
from PREFILL or DECODE to FORK.
"""

from array import array
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from enum import Enum
from math import inf
from sys import maxsize

from scheduler_svc.core.account import Account
from scheduler_svc.core.beam_round import BeamRound
from scheduler_svc.core.draft_state import DraftState, Forced
from scheduler_svc.core.errors import IllegalTransition
from scheduler_svc.core.request import Finish, Pooling, Request
from scheduler_svc.core.suspicion import Suspicion
from scheduler_svc.core.table import BlockTable

Age = tuple[float, int, int]
"""(measure, arrival, index): lower is older. The measure is the policy's."""

Watch = Callable[["Sequence"], None]
"""Is called with a sequence that has just begun, or changed its state."""


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


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """One continuation of a prompt.

        tokens     0 ........................... len(tokens)          confirmed
        computed   0 .............. computed                          keys and values confirmed
        planned    0 .......................................planned   with what is in flight

    `planned` is ahead of `tokens` if a planned row uses a token that is still in flight.
    """

    group: "SequenceGroup"
    index: int
    output: InitVar["array[int]"]
    """Known beforehand."""
    age: Age = field(init=False)
    """An older sequence is never preempted so that a younger one can grow."""
    tokens: "array[int]" = field(init=False)
    """Prompt and confirmed output, without what has been dropped from the context. Without output the
    request's own array until it gets a slot: many may wait."""
    dropped_tokens: int = 0
    """Number of tokens that were dropped from the context; see `rolling.py`."""
    state: State = State.WAITING
    backlog_tokens: int = 0
    """Tokens with which it counts as waiting; see `backlog.py`."""
    slot: int = -1
    """Row of the worker's batch; -1: none."""
    table: BlockTable | None = None
    """Its blocks; None without a slot."""
    epoch: int = 0
    """Raised whenever the slot is given up: results of rows planned in an earlier epoch are dropped."""
    computed: int = 0
    """Positions that have been computed for certain: a result has confirmed them."""
    planned: int = 0
    """Positions that have been computed once all plans in flight have been executed."""
    reached: int = 0
    """Positions that it had computed when it was preempted, which it first has to compute again."""
    turn_begin: int = 0
    """Step in which it got its slot, or in which the sequence got its slot from which it forked."""
    turn_end: float = inf
    """Step from which on it yields to other tenants and users; infinite while it computes again."""
    admitted_output: int = 0
    """Output tokens that it had when it got its slot."""
    admission_cost: int = 0
    """Tokens that had to be computed when it got its slot: known, and not in the cache."""
    drafted: int = 0
    """Number of drafts in flight. While there are any, it is not planned further."""
    drafts_forced: bool = False
    """Whether its newest drafts are what its grammar forces."""
    draft_state: DraftState | None = None
    """What speculation remembers of it; None until the first drafts are tried."""
    forced: Forced | None = None
    """The newest run of tokens that its grammar forces, as the worker has reported; it may be behind."""
    given_tokens: int = 0
    """Of a beam: number of its tokens that the worker has been given."""
    chain: list[bytes] = field(default_factory=list)
    """Names of its full blocks from the head on, as far as they were needed."""
    sight: int = 0
    """Number by which the worker will say that it has seen its images; 0: none of them is waited for."""
    messages: tuple[int, ...] = ()
    """Positions behind the first and the last message in it, where partial blocks may be named."""

    def __post_init__(self, output: "array[int]") -> None:
        group = self.group
        self.age = (group.measure, group.arrival, self.index)
        self.tokens = group.request.prompt + output if output else group.request.prompt

    def move(self, to: State) -> None:
        """Change the state; nothing else may. Raises `IllegalTransition`."""
        if to not in LEGAL[self.state]:
            raise IllegalTransition(
                f"{self.group.request.request_id}[{self.index}]: {self.state.value} to {to.value}"
            )
        self.state = to
        if self.group.watch is not None:
            self.group.watch(self)

    @property
    def waits(self) -> bool:
        """Whether it is to be given a slot."""
        return self.state is State.WAITING or self.state is State.PREEMPTED

    @property
    def about_to_end(self) -> bool:
        """Whether its last token is in flight: it will give up its blocks without being preempted."""
        return self.planned + 1 >= self.group.limit and self.computed < self.planned

    @property
    def computed_of_text(self) -> float:
        """Number of positions of the whole text that have been computed; infinite once it has ended."""
        return inf if self.state is State.DONE else self.dropped_tokens + self.computed

    @property
    def output_tokens(self) -> int:
        """Number of tokens generated so far, dropped ones included."""
        return self.dropped_tokens + len(self.tokens) - len(self.group.request.prompt)

    def ending(self) -> Finish:
        """Why the newest confirmed token is the last one, or that it is not."""
        request, tokens = self.group.request, self.tokens
        if tokens[-1] in request.stop_token_ids and self.output_tokens > 0:
            return Finish.STOP
        if request.rolling:
            full = 0 < request.max_tokens <= self.output_tokens
        else:
            full = len(tokens) >= self.group.limit
        return Finish.LENGTH if full else Finish.NOT_FINISHED


@dataclass(slots=True, eq=False, repr=False)
class SequenceGroup:
    """The sequences of one request.

    The first one that is not done leads: it computes the prompt while the others are held. Then they fork
    from it: they share its blocks, and each gets a copy of the last block if that is partly filled.
    """

    request: Request
    arrival: int
    watch: Watch | None = None
    account: Account = field(init=False)
    """Its user's account on its worker; set when a worker gets it."""
    limit: int = 0
    """Tokens that a sequence may have, prompt included; set when the group is accepted."""
    measure: float = 0.0
    """By which the policy orders groups, before their arrival; see `take_up`."""
    cached_tokens: int | None = None
    """Prompt tokens that were cached when the first sequence was first admitted; None before."""
    scored: int = field(init=False)
    """Tokens of the prompt, from the first on, whose log probabilities are delivered or not wanted."""
    drafts: int = 0
    """Number of drafts that were verified."""
    drafts_held: int = 0
    """Number of drafts that held."""
    drafted_rows: int = 0
    """Number of rows that had these drafts."""
    forced_tokens: int = 0
    """Number of drafts that held which a grammar had forced."""
    predicted: int = 0
    """Drafts of `Request.predicted` that held since the caller was told last."""
    predicted_rejected: int = 0
    """Drafts of `Request.predicted` that did not hold since then."""
    fingerprint: str = field(init=False)
    """Fingerprint of the worker that has begun the answer: one of the same goes on. Empty: any."""
    suspicion: Suspicion | None = None
    """None unless it may be the reason why a worker was lost."""
    vectors: list[bytes] | None = None
    """Vectors of the text's tokens so far, by chunks; None unless each token has one."""
    backlog_sequences: int = 0
    """Number of its sequences that count as waiting; see `backlog.py`."""
    beam_round: BeamRound | None = None
    """Where its beam search stands; None without one, and until it is on a worker."""
    sequences: list[Sequence] = field(default_factory=list)
    unfinished: int = field(init=False)
    """Number of sequences that are not done."""
    held: list[Sequence] = field(default_factory=list)
    """Sequences that wait for their leader to compute the prompt."""

    def __post_init__(self) -> None:
        request = self.request
        self.scored = max(1, request.scored_tokens) if request.scores_prompt else len(request.prompt)
        self.fingerprint = request.fingerprint
        so_far = {entry.index: entry for entry in request.resumed}
        # A search begins with one beam, and delivers its answers all at its end.
        searches = request.beams is not None and not request.resumed
        for index in range(1 if searches else request.n):
            known = so_far.get(index)
            sequence = Sequence(self, index, known.tokens if known else array("i"))
            if self.watch is not None:
                self.watch(sequence)
            if known and known.finished:
                sequence.move(State.DONE)
            self.sequences.append(sequence)
        self.unfinished = sum(1 for sequence in self.sequences if sequence.state is not State.DONE)

    @property
    def needs(self) -> tuple[str, str, bool]:
        """What a worker must have to take it: see `WorkerLimits.goes_on`."""
        return self.request.adapter, self.fingerprint, bool(self.request.images)

    @property
    def needs_length(self) -> int:
        """Tokens that a worker must be able to hold so that it goes on: all that the request asks for, if its
        limit is that and its answer has begun; or one more than it has."""
        asked = len(self.request.prompt) + self.request.max_tokens
        begun = any(sequence.output_tokens for sequence in self.sequences)
        if begun and self.request.max_tokens and self.limit == asked:
            return asked
        return 1 + max((len(sequence.tokens) for sequence in self.alive()), default=0)

    @property
    def most_cached(self) -> int:
        """Tokens at most, from the first one on, whose blocks its sequences may take from the cache.

        0 if all tokens are pooled, or each has a vector. Of a prompt whose log probabilities are wanted
        those whose logits are not needed any more: the last token that has been delivered is computed again.
        """
        if self.scored < len(self.request.prompt):
            return self.scored - 1
        return 0 if self.request.pooling in (Pooling.MEAN, Pooling.ALL) else maxsize

    def take_up(self, measure: float) -> None:
        """Set the ages of the sequences, which are about to be given to a worker."""
        self.measure = measure
        for sequence in self.sequences:
            sequence.age = (measure, self.arrival, sequence.index)

    def add_sequence(self) -> Sequence:
        """Add a sequence without tokens, which is about to fork from another."""
        sequence = Sequence(self, len(self.sequences), array("i"))
        sequence.move(State.FORK)
        self.sequences.append(sequence)
        self.unfinished += 1
        return sequence

    def alive(self) -> list[Sequence]:
        """The sequences that are not done, in order."""
        return [sequence for sequence in self.sequences if sequence.state is not State.DONE]

    def leader_after(self, ended: Sequence) -> Sequence | None:
        """The held sequence that leads now, no longer held, if `ended` was the leader and some are held."""
        if ended in self.held:
            self.held.remove(ended)
            return None
        return self.held.pop(0) if self.held else None

    def end_waiting(self, index: int) -> None:
        """End a sequence while no scheduler has the group."""
        sequence = self.sequences[index]
        if sequence.state is not State.DONE:
            sequence.move(State.DONE)
            self.unfinished -= 1
