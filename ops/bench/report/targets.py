"""What is asked of Quire, in figures; each is looked up in the results of one kind of benchmark."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ops.bench.record import Record
from ops.bench.report.figures import (
    Look,
    at,
    fair_in_a_flood,
    largest_over_smallest_pool,
    lowest_over_in_process,
    million,
    of_traces,
    over_static,
    over_the_best,
    over_the_floor,
    share_of_the_matrix_rate,
    shipped_over_static,
    slowest_pool,
    with_it,
    with_over_without,
)
from ops.bench.report.markdown import number
from ops.model_directory.settings import SHIPPED_MODEL

TRACES = "traces of a tenth of all requests and of what is slow or fails"
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "at most": operator.le,
    "at least": operator.ge,
    "below": operator.lt,
}


@dataclass(frozen=True)
class Bound:
    """What a figure may be."""

    comparison: str
    """One of `COMPARISONS`."""
    limit: float
    unit: str

    def kept_by(self, value: float) -> bool:
        return COMPARISONS[self.comparison](value, self.limit)

    def __str__(self) -> str:
        return f"{self.comparison} {number(self.limit)} {self.unit}".rstrip()


@dataclass(frozen=True)
class Target:
    """A figure, what is asked of it, and where it is found."""

    name: str
    asked: Bound
    benchmark: str
    """The kind of results that have the figure."""
    look: Look


@dataclass(frozen=True)
class Verdict:
    """A target held against one result file, or against none that has the figure."""

    target: Target
    value: float | None = None
    record: Record | None = None

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        return None if self.value is None else self.target.asked.kept_by(self.value)


OVER_STATIC = "over transformers' static batching, 135m"
SHIPPED = "output tokens/s over transformers' generate (a static batch), the shipped model in float32"
TARGETS = (
    Target(
        f"output tokens/s {OVER_STATIC}, 32 at once",
        Bound("at least", 4.5, "times"),
        "compare",
        over_static(32, "output_rate"),
    ),
    Target(
        f"output tokens/s {OVER_STATIC}, 1 at once",
        Bound("at least", 1.2, "times"),
        "compare",
        over_static(1, "output_rate"),
    ),
    Target(
        f"P99 of the time to the first token {OVER_STATIC}, 32 at once",
        Bound("at most", 0.5, "times"),
        "compare",
        over_static(32, "ttft_p99"),
    ),
    *(
        Target(f"{SHIPPED}, {users} at once", Bound("at least", least, "times"), kind, look(users))
        for users, least in ((1, 2.0), (8, 3.0))
        for kind, look in (
            ("compare", lambda users: over_static(users, "output_rate", SHIPPED_MODEL.name, "float32")),
            ("cpu-check", shipped_over_static),
        )
    ),
    Target(
        "output tokens/s of the processes over the engine in one, where it is least",
        Bound("at least", 0.95, "times"),
        "in-process",
        lowest_over_in_process,
    ),
    Target(
        "CPU time outside the worker, 32 at once",
        Bound("at most", 300, "µs a token"),
        "chain",
        at("cpu", "cpu_us_per_token_outside_worker"),
    ),
    Target(
        "time to the first token above the bare step",
        Bound("at most", 8, "ms"),
        "chain",
        at("first_token", "above_bare_step_p50_ms"),
    ),
    Target(
        f"output tokens/s with {TRACES}, over that without",
        Bound("at least", 0.99, "times"),
        "traces",
        of_traces(0.1, "computing", "traced over untraced", "tokens_per_second"),
    ),
    Target(
        f"CPU time of all processes that {TRACES} add",
        Bound("below", 0.01, "of all"),
        "traces",
        of_traces(0.1, "added part of all CPU", "traced over untraced"),
    ),
    Target(
        "metrics of all processes, 32 sequences in steps of 20 ms",
        Bound("below", 0.005, "of a core"),
        "watching",
        at("part of a core", "metrics"),
    ),
    Target(
        "P50 of a unary call over grpc.aio",
        Bound("at most", 1.2, "times"),
        "wire",
        at("ratios", "unary_p50", "median"),
    ),
    Target(
        "messages a CPU-second over grpc.aio, 256 streams",
        Bound("at least", 1.5, "times"),
        "wire",
        at("ratios", "steps_messages_per_cpu_second", "median"),
    ),
    Target(
        "planning a step of 256 decodes",
        Bound("at most", 0.5, "ms"),
        "core",
        at("steps", "256", "plan_ms", "p50"),
    ),
    Target(
        "planning a step of 1,024 decodes",
        Bound("at most", 2, "ms"),
        "core",
        at("steps", "1024", "plan_ms", "p50"),
    ),
    Target(
        "message of a plan for 256 decodes",
        Bound("at most", 8192, "bytes"),
        "core",
        at("steps", "256", "message_bytes", "p50"),
    ),
    Target(
        "looking up a prefix of 32,768 tokens",
        Bound("at most", 2, "ms"),
        "core",
        at("prefix", "lookup_ms", "p50"),
    ),
    Target(
        "blocks taken and given back, slowest pool",
        Bound("at least", 1e6, "a second"),
        "core",
        slowest_pool("empty"),
    ),
    Target(
        "blocks taken and given back, largest pool over smallest",
        Bound("at least", 0.9, "times"),
        "core",
        largest_over_smallest_pool("empty"),
    ),
    *(
        Target(
            f"output tokens/s over the best other engine, {model}, {users} at once",
            Bound("at least", least, "times"),
            "compare",
            over_the_best(model, users),
        )
        for model, least in (("135m", 1.1), ("1.1b", 1.0))
        for users in (1, 8, 32)
    ),
    *(
        Target(
            f"a step of {decodes} decodes over its floor, {model}",
            Bound("at most", most, "times"),
            "step",
            over_the_floor(model, decodes),
        )
        for model, most in (("135m", 1.6), ("1.1b", 1.25))
        for decodes in (1, 8, 32)
    ),
    Target(
        "rate of a prefill of 512 tokens, 1.1b",
        Bound("at least", 0.65, "of a matrix product's"),
        "step",
        share_of_the_matrix_rate("1.1b", 512),
    ),
    *(
        Target(
            f"output tokens/s with weights of int8, 1.1b, {users} at once",
            Bound("at least", 1.6, "times"),
            "mechanisms",
            with_over_without("1.1b", "weights of int8", f"output tokens/s, {users} at once"),
        )
        for users in (1, 8, 32)
    ),
    Target(
        "tokens/s of an answer in JSON, half of its tokens forced, over free text, 135m",
        Bound("at least", 1.2, "times"),
        "mechanisms",
        with_it("135m", "drafts of what a grammar forces", "rate over free text"),
    ),
    *(
        Target(
            f"grammars in a step, 135m, {users} at once",
            Bound("at most", 0.03, "of its time"),
            "mechanisms",
            with_it("135m", mechanism, "share of grammars in steps"),
        )
        for users, mechanism in (
            (2, "drafts of what a grammar forces"),
            (32, "drafts of what 32 grammars force"),
        )
    ),
    Target(
        "a worker's start, 1.1 billion parameters, files in the system's cache",
        Bound("below", 15, "s"),
        "footprint",
        at("seconds to load"),
    ),
    Target(
        "memory while 1.1 billion parameters are loaded, at most",
        Bound("at most", 1.1, "times the weights"),
        "footprint",
        at("loading, peak over weights"),
    ),
    Target(
        "a worker's memory at most, beside weights and pages, 1.1 billion parameters",
        Bound("at most", 600, "MiB"),
        "footprint",
        at("beside weights and pages MiB"),
    ),
    Target(
        "KV memory wasted, prompts of 32, 128 and 512 tokens",
        Bound("below", 0.04, "of what is held"),
        "core",
        at("kv", "wasted_share"),
    ),
    Target(
        "fairness (Jain's index) while one tenant floods, under any policy, simulated",
        Bound("at least", 0.95, ""),
        "simulate",
        fair_in_a_flood,
    ),
    Target(
        "simulating a million requests on a thousand workers, one core",
        Bound("at most", 15, "minutes"),
        "simulate-scale",
        million,
    ),
    *(
        Target(f"{what}, whatever fails", Bound("at most", 0, ""), "chaos", at(*keys))
        for what, keys in (
            ("answers lost", ("requests", "lost")),
            ("answers that differ", ("requests", "different")),
            ("tokens lost", ("tokens", "lost")),
            ("tokens repeated", ("tokens", "repeated")),
        )
    ),
    Target(
        "P99 of the time until all streams go on after a fault",
        Bound("below", 5, "s"),
        "chaos",
        at("recovery_s", "p99"),
    ),
    Target(
        "growth of the process that grows most under a mixed load",
        Bound("below", 1, "MiB an hour"),
        "soak",
        at("steepest_mib_an_hour"),
    ),
    Target("kinds of things left behind by a mixed load", Bound("at most", 0, ""), "soak", at("left_behind")),
    Target(
        "P99 of accepted answers at ten times the capacity, over that at capacity",
        Bound("at most", 1.5, "times"),
        "overload",
        at("p99_over_capacity"),
    ),
    Target(
        "time until a malformed or hostile grammar is refused, at most",
        Bound("at most", 1, "s"),
        "hostile-grammars",
        at("refusal_s"),
    ),
    Target(
        "longest gap between a stream's tokens beside hostile grammars, over that without",
        Bound("at most", 20, "ms"),
        "hostile-grammars",
        at("extra_ms"),
    ),
    Target(
        "CPU time of gateway and tokenizer, a streamed token, 64 at once",
        Bound("at most", 120, "µs"),
        "front",
        at("costs", "cpu_us_per_token", "both"),
    ),
    *(
        Target(
            f"CPU time of gateway and tokenizer, a request with one token, {many} at once",
            Bound("at most", 3, "ms"),
            "front",
            at("costs", "cpu_ms_per_request", f"{many} at once", "both"),
        )
        for many in (1, 64)
    ),
    Target(
        "memory that 2,000 streams take in gateway and tokenizer",
        Bound("below", 300, "MB"),
        "front",
        at("idle", "grown_mb", "both"),
    ),
    Target(
        "longest gap between a stream's tokens beside prompts of 100,000 tokens, over that without",
        Bound("at most", 20, "ms"),
        "front",
        at("long_prompts", "extra_ms"),
    ),
    Target("P99 of a refusal", Bound("at most", 50, "ms"), "overload", at("refusal_p99_ms")),
    Target("first token after an overload has ended", Bound("at most", 1, "s"), "overload", at("recovery_s")),
)


def judged(records: Iterable[Record], targets: Iterable[Target] = TARGETS) -> list[Verdict]:
    """Every target against every result file that has its figure."""
    known = list(records)
    verdicts = []
    for target in targets:
        found = [
            Verdict(target, value, record)
            for record in known
            if record.benchmark == target.benchmark and (value := target.look(record.results)) is not None
        ]
        verdicts += found or [Verdict(target)]
    return verdicts
