"""What a process counts and measures while it serves.

A metric is declared once, in `metric_names.py`. Its values in this process are `Counter`s, `Gauge`s and
`Histogram`s, one for each combination of labels. Whoever measures keeps the one that it needs, so that an
observation costs a few hundred nanoseconds. Each process leaves a snapshot of its values in Redis now and
then (`metrics_store.py`), and the gateway shows those of all processes (`gateway/api/system/metrics.py`).
"""

import json
import math
import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar


@dataclass(frozen=True)
class Metric:
    """What is measured, under the name that it has in Prometheus."""

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper bounds of its buckets but the last, which has none. Ascending."""
    other_name: str = ""
    """Another name under which it is shown, too; empty for none."""

    def __post_init__(self) -> None:
        assert bool(self.bounds) == (self.kind == "histogram"), self.name
        assert all(low < high for low, high in pairwise(self.bounds)), self.name


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self, _: Metric) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        self.value += amount

    def told(self) -> Any:
        return self.value


class Gauge:
    """A number that goes up and down."""

    __slots__ = ("value",)

    def __init__(self, _: Metric) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def told(self) -> Any:
        return self.value


class Exemplar(NamedTuple):
    """One value in a bucket, and the trace that tells more of it."""

    trace_id: int
    value: float
    at: float
    """When it was measured. Seconds since 1970."""


class Histogram:
    """How many values there were in each bucket, and their sum."""

    __slots__ = ("_bounds", "counts", "exemplars", "sum")

    def __init__(self, metric: Metric) -> None:
        self._bounds = metric.bounds
        self.counts = [0] * (len(metric.bounds) + 1)
        """Of values up to each bound and above the one before; last those above all bounds."""
        self.sum = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """By bucket, the newest value in it whose request is traced."""

    def observe(self, value: float, trace_id: int = 0) -> None:
        """`trace_id`: of the request's trace; 0: it is not traced."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if trace_id:
            self.exemplars[bucket] = Exemplar(trace_id, value, time.time())

    def told(self) -> Any:
        return [*self.counts, self.sum]


Value = Counter | Gauge | Histogram
Some = TypeVar("Some", Counter, Gauge, Histogram)
Labels = tuple[str, ...]
Snapshot = dict[str, dict[Labels, list[float]]]
"""By the metric's name and the values of its labels: its number, or of a histogram counts and sum."""
Exemplars = dict[str, dict[Labels, dict[int, Exemplar]]]
"""By the metric's name, the values of its labels, and the number of the bucket."""
_EXEMPLARS = "#exemplars"
"""After a metric's name: its exemplars, four numbers each. Who does not know this leaves them out."""


class Metrics:
    """The values of one process."""

    def __init__(self) -> None:
        self._values: dict[tuple[Metric, Labels], Value] = {}
        self._readers: list[Callable[[], None]] = []
        self.published = b"[]"
        """The snapshot that was last left for other processes."""

    def counter(self, metric: Metric, *labels: str) -> Counter:
        return self._value(Counter, metric, labels)

    def gauge(self, metric: Metric, *labels: str) -> Gauge:
        return self._value(Gauge, metric, labels)

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        return self._value(Histogram, metric, labels)

    def read_by(self, reader: Callable[[], None]) -> None:
        """Have `reader` called before each snapshot: it sets what is known at any time, and need not be
        counted."""
        self._readers.append(reader)

    def forget(self, metric: Metric) -> None:
        """Drop all values of a gauge, before it is set anew: its labels say what is so, and may change."""
        for key in [key for key in self._values if key[0] is metric]:
            del self._values[key]

    def snapshot(self) -> bytes:
        """All values, as `parse` reads them."""
        for reader in self._readers:
            reader()
        values = [(metric.name, labels, value.told()) for (metric, labels), value in self._values.items()]
        for (metric, labels), value in self._values.items():
            if isinstance(value, Histogram) and value.exemplars:
                told = [number for bucket, each in value.exemplars.items() for number in (bucket, *each)]
                values.append((metric.name + _EXEMPLARS, labels, told))
        return json.dumps(values, separators=(",", ":")).encode()

    def _value(self, kind: type[Some], metric: Metric, labels: Labels) -> Some:
        value = self._values.get((metric, labels))
        if value is None:
            assert metric.kind == kind.__name__.lower(), metric.name
            assert len(labels) == len(metric.labels), metric.name
            value = self._values[metric, labels] = kind(metric)
        assert isinstance(value, kind)
        return value


METRICS = Metrics()
"""The values of this process."""


def parse(snapshot: bytes, known: Mapping[str, Metric]) -> Snapshot:
    """A snapshot's values of the metrics that are known. Raises `ValueError` if it cannot be read.

    A process of another version may have metrics that this one does not know: they are left out.
    """
    values: Snapshot = {}
    try:
        for name, labels, told in json.loads(snapshot):
            metric = known.get(name)
            numbers = [float(each) for each in (told if isinstance(told, list) else [told])]
            if metric is None or len(numbers) != (len(metric.bounds) + 2 if metric.bounds else 1):
                continue
            if len(labels) == len(metric.labels) and all(map(math.isfinite, numbers)):
                values.setdefault(name, {})[tuple(map(str, labels))] = numbers
    except (TypeError, LookupError, RecursionError, OverflowError) as error:
        raise ValueError(repr(error)) from None
    return values


def exemplars_in(snapshot: bytes, known: Mapping[str, Metric]) -> Exemplars:
    """The exemplars of a snapshot that `parse` can read. Those that cannot be are left out."""
    found: Exemplars = {}
    for name, labels, told in json.loads(snapshot):
        metric = known.get(name.removesuffix(_EXEMPLARS))
        if metric is None or name == metric.name or len(labels) != len(metric.labels):
            continue
        by_bucket = found.setdefault(metric.name, {}).setdefault(tuple(map(str, labels)), {})
        for bucket, trace_id, value, at in zip(*([iter(told)] * 4), strict=False):
            if trace_id in range(1, 2**128) and bucket in range(len(metric.bounds) + 1):
                by_bucket[bucket] = Exemplar(trace_id, float(value), float(at))
    return found


def cpu_seconds() -> float:
    """CPU time of this process so far, all threads, in user and kernel mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> float:
    """Memory of this process that is in RAM; 0 where the system does not say (other than Linux)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0.0
