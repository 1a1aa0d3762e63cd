"""The load of each model in one series a metric, for routers such as an endpoint picker.

They know one server behind an address, and read the first series that they find under a name. Of several
schedulers they would see one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ops.runtime import metric_names as names
from ops.runtime.exposition import parsed, shown
from ops.runtime.metrics import Snapshot

SUMMED = (names.RUNNING, names.WAITING, names.WAITING_BY_REASON)
ALL = "all"
"""What the label `engine` names: no process by itself."""


def expose_models(snapshots: Mapping[str, bytes], accept: str) -> tuple[bytes, str]:
    """As `expose`, of what the schedulers have together."""
    return shown({ALL: together(parsed(snapshots).values())}, accept)


def together(snapshots: Iterable[Snapshot]) -> Snapshot:
    """One snapshot of all: requests are added up, and memory is that of all workers."""
    found: Snapshot = defaultdict(dict)
    blocks = defaultdict[str, Counter[str]](Counter)
    for snapshot in snapshots:
        for metric in SUMMED:
            for labels, (value,) in snapshot.get(metric.name, {}).items():
                (before,) = found[metric.name].get(labels, [0.0])
                found[metric.name][labels] = [before + value]
        for (model, state), (value,) in snapshot.get(names.BLOCKS.name, {}).items():
            blocks[model][state] += int(value)
        for model, size, _ in snapshot.get(names.CACHE_CONFIG.name, {}):
            blocks[model]["size"] = int(size)
        for labels, (time,) in snapshot.get(names.LORA.name, {}).items():
            _add_adapters(found[names.LORA.name], labels, time)
    for model, counts in blocks.items():
        total = counts["held"] + counts["idle"] + counts["empty"]
        found[names.KV_USAGE.name][model,] = [counts["held"] / total if total else 0.0]
        if total:
            found[names.CACHE_CONFIG.name][model, str(counts["size"]), str(total)] = [1.0]
    return found


def _add_adapters(found: dict[tuple[str, ...], list[float]], labels: tuple[str, ...], time: float) -> None:
    """Put a scheduler's LoRA adapters to those of the model's others."""
    model, most, *lists = labels
    for other in [each for each in found if each[0] == model]:
        (before,) = found.pop(other)
        most, time = max(most, other[1], key=int), max(time, before)
        pairs = zip(lists, other[2:], strict=True)
        lists = [",".join(sorted({*one.split(","), *two.split(",")} - {""})) for one, two in pairs]
    found[model, most, *lists] = [time]
