"""What a process is busy with, read from its metrics."""

from collections.abc import Iterable

from ops.runtime.metric_names import BLOCKS, CALLS_WAITING, GENERATION_TOKENS, RUNNING, SERVING, WAITING
from ops.runtime.metrics import Metric, Snapshot

Load = dict[str, float]


def load_of(service: str, found: Snapshot) -> Load:
    """Numbers by name, of a process of this service; those that it does not measure are left out."""
    if service == "scheduler":
        states = {state: _value(found, BLOCKS, state) for state in ("held", "idle", "empty")}
        numbers = {
            "running": _value(found, RUNNING),
            "waiting": _value(found, WAITING),
            "blocks_held": states["held"],
            "blocks": _sum(states.values()),
        }
    elif service == "gateway":
        numbers = {"waiting": _value(found, CALLS_WAITING), "tokens": _value(found, GENERATION_TOKENS)}
    else:
        numbers = {"calls": _value(found, SERVING)}
    return {name: value for name, value in numbers.items() if value is not None}


def in_words(load: Load) -> str:
    """A load for a person."""
    parts = [
        f"{load[name]:,.0f} {name}" for name in ("running", "waiting", "calls", "tokens") if name in load
    ]
    if blocks := load.get("blocks"):
        parts.append(f"{load['blocks_held']:,.0f} of {blocks:,.0f} blocks held")
    return ", ".join(parts)


def _value(found: Snapshot, metric: Metric, *labels: str) -> float | None:
    """The sum over all models of what ends with these labels."""
    told = found.get(metric.name, {})
    return _sum(numbers[0] for of, numbers in told.items() if of[len(of) - len(labels) :] == labels)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
