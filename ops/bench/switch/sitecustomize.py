"""Turns the traces of a process off and on, for `ops.bench.traces`: Python runs this before anything else.

`TRACES_SWITCH` is a folder. With each SIGUSR2 the process reads the rate from its file `rate`. Then it leaves
a file there with its id as name and the rate as content. "off": no span is made, as without an endpoint, and
those that were made before are sent now.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

_original: list[Any] = []


def turn(*_: object) -> None:
    """Do what the folder says now."""
    folder = Path(os.environ["TRACES_SWITCH"])
    rate = (folder / "rate").read_text()
    if "ops.runtime.light_spans" in sys.modules:  # others make no spans
        from dataclasses import replace

        from opentelemetry import trace

        from ops.runtime.light_spans import LightTracer, LightTracerProvider

        _original[:] = _original or [LightTracer.start_span]
        provider = trace.get_tracer_provider()
        if rate == "off":
            LightTracer.start_span = lambda *_, **__: trace.INVALID_SPAN  # type: ignore[method-assign]
            if isinstance(provider, LightTracerProvider):
                provider.force_flush()
        elif isinstance(provider, LightTracerProvider):
            LightTracer.start_span = _original[0]  # type: ignore[method-assign]
            provider.sampling = replace(provider.sampling, rate=float(rate))
    draft = folder / f"{os.getpid()}.draft"
    draft.write_text(rate)
    draft.replace(folder / str(os.getpid()))


if "TRACES_SWITCH" in os.environ:
    signal.signal(signal.SIGUSR2, turn)
