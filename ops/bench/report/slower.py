"""Quire's figures beside those of others, from the results; and where Quire's are the worse ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from ops.bench.record import Record
from ops.bench.report.sections.engines import subject

LATENCIES = {"ttft": "first_token", "itl": "between_tokens", "e2e": "end_to_end"}
TIMES = {"ttft": "time to the first token", "itl": "time between tokens", "e2e": "time of a whole answer"}


@dataclass(frozen=True)
class Comparison:
    """A figure of Quire's and the same of somebody else's, measured in turns."""

    what: str
    than: str
    ours: float
    theirs: float
    ratio: Mapping[str, float]
    """Ours over theirs: `lowest`, `median` and `highest`, or `median` alone."""
    is_time: bool
    """Less is better; of a rate more is."""
    record: Record

    @property
    def times_slower(self) -> float:
        """How many times slower Quire is; below 1 where it is faster."""
        return self.ratio["median"] if self.is_time else 1 / self.ratio["median"]


def of_engines(record: Record) -> Iterator[Comparison]:
    """`quire bench compare`: every engine at every concurrency."""
    about = subject(record.results)
    for load in record.results["loads"]:
        at_once = f"{about}, {load['concurrency']} at once"
        both = load["competitors"]
        (ours,) = both.keys() - load["ratios"].keys()
        for name, ratios in load["ratios"].items():
            for figure, ratio in ratios.items():
                what, keys = _figure_of_engines(figure)
                mine, other = (_inside(both[each]["all"], keys) for each in (ours, name))
                is_time = figure != "output_rate"
                yield Comparison(f"{what} ({at_once})", name, mine, other, ratio, is_time, record)


def _figure_of_engines(figure: str) -> tuple[str, tuple[str, ...]]:
    """A short name such as `ttft_p99` in words, and where a summary keeps it."""
    if figure == "output_rate":
        return "output tokens/s", (figure,)
    kind, share = figure.split("_")
    return f"{TIMES[kind]}, {share.upper()}, ms", (LATENCIES[kind], share)


def _inside(found: Any, keys: Iterable[str]) -> float:
    for key in keys:
        found = found[key]
    return float(found)


def of_wires(record: Record) -> Iterator[Comparison]:
    """The wire beside grpc.aio."""
    for what, kind, figure, name in (
        ("a unary call, P50, ms", "unary", "p50_ms", "unary_p50"),
        (
            "messages a CPU-second, steadily",
            "steps",
            "messages_per_cpu_second",
            "steps_messages_per_cpu_second",
        ),
        (
            "messages a CPU-second, in a flood",
            "flood",
            "messages_per_cpu_second",
            "flood_messages_per_cpu_second",
        ),
    ):
        rounds = record.results["rounds"][kind]
        ours, theirs = (median(one[figure] for one in rounds[each]) for each in ("redis", "grpc"))
        ratio = record.results["ratios"][name]
        yield Comparison(what, "grpc.aio", ours, theirs, ratio, kind == "unary", record)


def of_products(record: Record) -> Iterator[Comparison]:
    """Matrix products of the CPU back end beside oneDNN's."""
    for model, products in record.results.items():
        if not isinstance(products, Mapping):
            continue
        for product, by_rows in products.items():
            for rows, kinds in by_rows.items():
                ours, theirs = kinds["bf16"]["us"], kinds["onednn_bf16"]["us"]
                what = f"product {product} ({model}, bfloat16, {rows} rows), µs"
                ratio = {"median": ours / theirs}
                yield Comparison(what, "oneDNN", ours, theirs, ratio, True, record)


def of_attention(record: Record) -> Iterator[Comparison]:
    """Attention of the CPU back end beside the one in plain PyTorch."""
    for kind, unit in (("decodes", "GB/s"), ("chunks", "GFLOP/s")):
        for case in record.results[kind]:
            ours, theirs = case[unit], case[f"{unit} of PyTorch"]
            what = (
                f"attention ({case['shape']}; rows {case['rows']}, tokens {case['tokens']}, "
                f"context {case['context']}), {unit}"
            )
            yield Comparison(what, "plain PyTorch", ours, theirs, {"median": ours / theirs}, False, record)


COMPARISONS: Mapping[str, Callable[[Record], Iterator[Comparison]]] = {
    "compare": of_engines,
    "wire": of_wires,
    "linear": of_products,
    "attention": of_attention,
}
"""By kind of benchmark; the others have nobody in them but Quire."""


def slower(records: Iterable[Record]) -> list[Comparison]:
    """Every comparison in which Quire's median is the worse one, the worst first."""
    found = [
        comparison
        for record in records
        if record.benchmark in COMPARISONS
        for comparison in COMPARISONS[record.benchmark](record)
        if comparison.times_slower > 1
    ]
    return sorted(found, key=lambda comparison: -comparison.times_slower)
