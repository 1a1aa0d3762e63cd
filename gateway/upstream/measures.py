"""What a gateway measures of its answers, as its clients see them."""

import time
from collections.abc import Callable

from gateway.errors import GatewayError
from ops.runtime import metric_names as names
from ops.runtime.metrics import METRICS, Counter, Metrics
from proto.sampling_pb2 import LENGTH, STOP, FinishReason
from proto.tokenizer_pb2 import TextRequest

REASONS = {STOP: "stop", LENGTH: "length"}
ABORT, ERROR = "abort", "error"
MOST_VALUES = 100
"""Values of a label that are told apart. Further ones count under "other". Who has no key is known by its
address, and neither addresses nor names of fields have an end."""


class Counters:
    """Counters of one metric, by a label whose values come from clients."""

    def __init__(self, make: Callable[[str], Counter]) -> None:
        """`make`: the counter of a value."""
        self._make = make
        self._told_apart: dict[str, Counter] = {}

    def of(self, value: str) -> Counter:
        """The counter of a value, or that of all others."""
        counter = self._told_apart.get(value)
        if counter is None:
            if len(self._told_apart) >= MOST_VALUES:
                return self._make("other")
            counter = self._told_apart[value] = self._make(value)
        return counter


def ignored_fields(metrics: Metrics = METRICS) -> Counters:
    """Count the fields of requests that are ignored, by name."""
    return Counters(lambda name: metrics.counter(names.IGNORED, name))


class Measures:
    """The metrics of the answers of one model."""

    def __init__(self, model: str, metrics: Metrics = METRICS, clock: Callable[[], float] = time.monotonic):
        """`clock`: in seconds."""
        self.clock = clock
        self.end_to_end = metrics.histogram(names.END_TO_END, model)
        self.first_token = metrics.histogram(names.FIRST_TOKEN, model)
        self.inter_token = metrics.histogram(names.INTER_TOKEN, model)
        self.per_token = metrics.histogram(names.PER_TOKEN, model)
        self.prompt_tokens = metrics.counter(names.PROMPT_TOKENS, model)
        self.generation_tokens = metrics.counter(names.GENERATION_TOKENS, model)
        self.of_prompt = metrics.histogram(names.REQUEST_PROMPT_TOKENS, model)
        self.of_sequence = metrics.histogram(names.REQUEST_GENERATION_TOKENS, model)
        self.of_longest = metrics.histogram(names.MAX_GENERATION_TOKENS, model)
        self.n = metrics.histogram(names.PARAMS_N, model)
        self.max_tokens = metrics.histogram(names.PARAMS_MAX_TOKENS, model)
        self.resumed = metrics.counter(names.RESUMED, model)
        self.refused = metrics.counter(names.REFUSED, model)
        self.calls_under_way = metrics.gauge(names.CALLS_UNDER_WAY, model)
        self.calls_waiting = metrics.gauge(names.CALLS_WAITING, model)
        self.ended = {
            reason: metrics.counter(names.REQUEST_SUCCESS, model, reason)
            for reason in (*REASONS.values(), ABORT, ERROR)
        }
        self._tenants = Counters(lambda tenant: metrics.counter(names.TENANT_TOKENS, model, tenant))

    def tokens_of(self, tenant: str) -> Counter:
        """Counts the tokens of a tenant."""
        return self._tenants.of(tenant)


class AnswerTimes:
    """When the parts of the answer to one prompt came."""

    def __init__(self, measures: Measures, request: TextRequest, trace_id: int = 0) -> None:
        """`trace_id`: of the request's trace; 0: it is not traced."""
        self._measures, self._trace_id = measures, trace_id
        self._came = self._latest = measures.clock()
        self._longest = 0.0
        self._request = request
        self._tokens_of_tenant = measures.tokens_of(request.tenant)
        self._first = [0.0] * request.n
        """Of each sequence, when its first tokens came; 0: there are none yet."""
        self._last = [0.0] * request.n
        self._counts = [0] * request.n
        self._unfinished = request.n
        self._calls = 0

    def call(self) -> None:
        """A call is made for the answer, or for the rest of it."""
        self._calls += 1
        if self._calls > 1:
            self._measures.resumed.add()

    def refused(self) -> None:
        """The latest call has begun nothing: the next one is for the same answer, with a shorter prompt."""
        self._calls -= 1

    def prompt(self, tokens: int) -> None:
        """The number of the prompt's tokens is known."""
        measures = self._measures
        measures.prompt_tokens.add(tokens)
        measures.of_prompt.observe(tokens)
        measures.n.observe(self._request.n)
        if self._request.HasField("max_tokens"):
            measures.max_tokens.observe(self._request.max_tokens)
        self._tokens_of_tenant.add(tokens)

    @property
    def output_tokens(self) -> int:
        return sum(self._counts)

    @property
    def first_chunk(self) -> float | None:
        """Seconds until the first tokens came; None if there are none yet."""
        begun = [first for first in self._first if first]
        return min(begun) - self._came if begun else None

    @property
    def longest_wait(self) -> float:
        """The longest time without a token, in seconds. One that goes on counts."""
        return max(self._longest, self._measures.clock() - self._latest)

    def tokens(self, index: int, tokens: int, reason: FinishReason) -> None:
        """A sequence has got `tokens` more. `reason`: why it has ended; `NOT_FINISHED`: it goes on."""
        measures = self._measures
        now = measures.clock()
        if tokens:
            if (waited := now - self._latest) > self._longest:
                self._longest = waited
            self._latest = now
            measures.generation_tokens.add(tokens)
            self._tokens_of_tenant.add(tokens)
            if self._counts[index]:
                measures.inter_token.observe(now - self._last[index])
            else:
                if not any(self._counts):
                    measures.first_token.observe(now - self._came, self._trace_id)
                self._first[index] = now
            self._counts[index] += tokens
            self._last[index] = now
        if reason:
            measures.ended[REASONS[reason]].add()
            self._ended(index)
            self._unfinished -= 1
            if not self._unfinished:
                measures.end_to_end.observe(now - self._came, self._trace_id)
                measures.of_longest.observe(max(self._counts))

    def __enter__(self) -> None:
        """From here to the exit the answer comes. What is missing at the exit failed, or nobody wants it."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # What the request itself is to blame for, or what finds no room, is no end of a sequence.
        if not (isinstance(error, GatewayError) and error.status < 500):
            failed = kind is not None and issubclass(kind, Exception)
            self._measures.ended[ERROR if failed else ABORT].add(self._unfinished)
        self._unfinished = 0

    def _ended(self, index: int) -> None:
        count = self._counts[index]
        self._measures.of_sequence.observe(count)
        if count > 1:
            self._measures.per_token.observe((self._last[index] - self._first[index]) / (count - 1))
