"""Metrics as Prometheus reads them."""

import logging
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar as Shown
from prometheus_client.utils import floatToGoString

from ops.runtime.metric_names import BY_NAME
from ops.runtime.metrics import Exemplar, Exemplars, Metric, Snapshot, exemplars_in, parse

ENGINE = "engine"
"""The label that names the process which measured."""

_KINDS: Mapping[str, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}

logger = logging.getLogger(__name__)


def expose(snapshots: Mapping[str, bytes], accept: str) -> tuple[bytes, str]:
    """The snapshots of processes, by their ids, in the newer of the formats that the reader accepts; and the
    type of that content.

    The names have colons, which every version of Prometheus takes. The library's other ways of escaping
    replace them in one of the formats.
    """
    found = parsed(snapshots)
    exemplars = {each: _exemplars(snapshots[each]) for each in found} if takes_newer(accept) else {}
    return shown(found, accept, exemplars)


def takes_newer(accept: str) -> bool:
    """Whether the reader accepts the newer of the two formats."""
    return openmetrics.CONTENT_TYPE_LATEST.partition(";")[0] in accept


def shown(
    found: Mapping[str, Snapshot], accept: str, exemplars: Mapping[str, Exemplars] | None = None
) -> tuple[bytes, str]:
    """As `expose`, of snapshots that have been read."""
    exposition = Exposition(found, exemplars)
    if takes_newer(accept):
        body: bytes = openmetrics.generate_latest(exposition, escaping=openmetrics.ALLOWUTF8)
        return body, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(exposition, escaping=openmetrics.ALLOWUTF8), CONTENT_TYPE_PLAIN_0_0_4


def parsed(snapshots: Mapping[str, bytes]) -> dict[str, Snapshot]:
    """By process. What cannot be read is logged and left out."""
    found = {}
    for process_id, snapshot in snapshots.items():
        try:
            found[process_id] = parse(snapshot, BY_NAME)
        except ValueError as error:
            logger.warning("the metrics of %s cannot be read: %s", process_id, error)
    return found


def _exemplars(snapshot: bytes) -> Exemplars:
    """Those of another version may be something else."""
    try:
        return exemplars_in(snapshot, BY_NAME)
    except (TypeError, ValueError):
        return {}


class Exposition:
    """What an encoder of `prometheus_client` takes for a registry."""

    def __init__(
        self, snapshots: Mapping[str, Snapshot], exemplars: Mapping[str, Exemplars] | None = None
    ) -> None:
        """By process. Only the newer format has exemplars."""
        self._snapshots, self._exemplars = snapshots, exemplars or {}

    def collect(self) -> Iterator[Family]:
        for metric in BY_NAME.values():
            for name in filter(None, (metric.name, metric.other_name)):
                family = _KINDS[metric.kind](name, metric.help, labels=(*metric.labels, ENGINE))
                for process_id, snapshot in self._snapshots.items():
                    exemplars = self._exemplars.get(process_id, {}).get(metric.name, {})
                    for labels, numbers in snapshot.get(metric.name, {}).items():
                        _add(family, metric, (*labels, process_id), numbers, exemplars.get(labels, {}))
                yield family


def _add(
    family: Family,
    metric: Metric,
    labels: tuple[str, ...],
    numbers: list[float],
    exemplars: Mapping[int, Exemplar],
) -> None:
    if isinstance(family, HistogramMetricFamily):
        *counts, total = numbers
        bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
        shown = {number: _shown(each) for number, each in exemplars.items()}
        lines = zip(bounds, accumulate(counts), strict=True)
        buckets: list[tuple[str, float] | tuple[str, float, Shown]] = [
            (*line, shown[number]) if number in shown else line for number, line in enumerate(lines)
        ]
        family.add_metric(labels, buckets, total)
    else:
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(labels, numbers[0])


def _shown(exemplar: Exemplar) -> Shown:
    return Shown({"trace_id": f"{exemplar.trace_id:032x}"}, exemplar.value, exemplar.at)
