"""In Jaeger's place: takes spans (OTLP over gRPC, port 4317), and shows a trace at `/api/traces/ID`.

It runs in the gateway's image, and keeps the newest traces.
"""

import json
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

MOST_TRACES = 1000


class Traces(TraceServiceServicer):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: OrderedDict[str, list[tuple[str, str]]] = OrderedDict()
        """Of each trace, by its id, the spans: service and name."""

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        with self._lock:
            for resource in request.resource_spans:
                labels = {each.key: each.value.string_value for each in resource.resource.attributes}
                for span in (each for scope in resource.scope_spans for each in scope.spans):
                    trace = self._traces.setdefault(span.trace_id.hex(), [])
                    trace.append((labels["service.name"], span.name))
            while len(self._traces) > MOST_TRACES:
                self._traces.popitem(last=False)
        return ExportTraceServiceResponse()

    def shown(self, trace_id: str) -> dict[str, Any]:
        """A part of what Jaeger shows."""
        with self._lock:
            spans = self._traces.get(trace_id, ())
            return {
                "traceID": trace_id,
                "spans": [{"processID": service, "operationName": name} for service, name in spans],
                "processes": {service: {"serviceName": service} for service, _ in spans},
            }


def main() -> None:
    traces = Traces()

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [traces.shown(urlsplit(self.path).path.rpartition("/")[2])]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(traces, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port("0.0.0.0:4317")
    server.start()
    ThreadingHTTPServer(("0.0.0.0", 16686), Pages).serve_forever()


if __name__ == "__main__":
    main()
