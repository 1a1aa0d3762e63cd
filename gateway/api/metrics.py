"""GET /metrics: the metrics of all processes, for Prometheus."""

import logging
from collections.abc import Iterator, Mapping
from itertools import accumulate

from fastapi import APIRouter, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from gateway.errors import Unauthorized, Unavailable
from gateway.http.openapi import getting_text
from gateway.upstream.backend import Backend
from ops.runtime.metric_names import BY_NAME
from ops.runtime.metrics import METRICS, Metric, Snapshot, parse
from ops.runtime.metrics_store import MetricsStore
from proto.rpc import BusAway

ENGINE = "engine"
"""The label that names the process which measured."""

_KINDS: Mapping[str, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}

logger = logging.getLogger(__name__)


def router(backend: Backend, store: MetricsStore | None) -> APIRouter:
    """`store`: where all processes leave their metrics. Without it there are those of this process alone."""
    routes = APIRouter()

    @routes.get("/metrics", openapi_extra=getting_text("Metrics of all processes.", Unauthorized))
    async def show_metrics(request: Request) -> Response:
        """What all processes have counted and measured."""
        found = {"gateway": METRICS.snapshot()} if store is None else await _read(backend, store)
        return _response(Exposition(_parsed(found)), request.headers.get("accept", ""))

    return routes


async def _read(backend: Backend, store: MetricsStore) -> dict[str, bytes]:
    """The snapshots of all live processes. Raises `Unavailable`."""
    try:
        return await store.read([lease.process_id for lease in await backend.leases()])
    except (BusAway, ConnectionError, TimeoutError):
        raise Unavailable("The message queue cannot be reached.") from None


def _response(exposition: "Exposition", accept: str) -> Response:
    """In the newer of the formats that the reader accepts.

    The names have colons, which every version of Prometheus takes. The library's other ways of escaping
    replace them in one of the formats.
    """
    if openmetrics.CONTENT_TYPE_LATEST.partition(";")[0] in accept:
        body: bytes = openmetrics.generate_latest(exposition, escaping=openmetrics.ALLOWUTF8)
        return Response(body, headers={"Content-Type": openmetrics.CONTENT_TYPE_LATEST})
    body = generate_latest(exposition, escaping=openmetrics.ALLOWUTF8)
    return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _parsed(snapshots: Mapping[str, bytes]) -> dict[str, Snapshot]:
    """By process. What cannot be read is logged and left out."""
    parsed = {}
    for process_id, snapshot in snapshots.items():
        try:
            parsed[process_id] = parse(snapshot, BY_NAME)
        except ValueError as error:
            logger.warning("the metrics of %s cannot be read: %s", process_id, error)
    return parsed


class Exposition:
    """What an encoder of `prometheus_client` takes for a registry."""

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        """`snapshots`: by process."""
        self._snapshots = snapshots

    def collect(self) -> Iterator[Family]:
        for metric in BY_NAME.values():
            for name in filter(None, (metric.name, metric.older_name)):
                family = _KINDS[metric.kind](name, metric.help, labels=(*metric.labels, ENGINE))
                for process_id, snapshot in self._snapshots.items():
                    for labels, numbers in snapshot.get(metric.name, {}).items():
                        _add(family, metric, (*labels, process_id), numbers)
                yield family


def _add(family: Family, metric: Metric, labels: tuple[str, ...], numbers: list[float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        *counts, total = numbers
        bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
    else:
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(labels, numbers[0])
