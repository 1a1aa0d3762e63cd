"""A result file: what was measured, where, when and with what."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("grpcio", "protobuf", "redis", "hiredis", "uvloop"),
    *("torch", "triton", "transformers", "fastapi", "uvicorn", "llguidance", "xgrammar"),
)
WIDTH = 120
"""Characters of a line of a result file, if its parts allow it."""


@dataclass(frozen=True)
class Record:
    """What a result file says."""

    name: str
    """Of the file, without its ending."""
    benchmark: str
    """The kind of results, by which they are known."""
    date: str
    """ISO 8601, UTC."""
    commit: str
    seed: int
    machine: dict[str, Any]
    versions: dict[str, str]
    results: dict[str, Any]


def machine() -> dict[str, Any]:
    """Processor, cores, memory (GiB), system and Python of this machine; its GPUs, if it has any."""
    return {
        "cpu": processor(Path("/proc/cpuinfo")) or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        **({"gpu": found} if (found := _gpus()) else {}),
    }


def processor(described: Path) -> str:
    """The processor's name, and its generation in numbers, which virtual machines hide in the name."""
    if not described.exists():
        return ""
    lines = [line.split(":", 1) for line in described.read_text().splitlines() if ":" in line]
    found = {key.strip(): value.strip() for key, value in reversed(lines)}
    name = found.get("model name", "")
    if {"cpu family", "model"} <= found.keys():
        name += f" (family {found['cpu family']}, model {found['model']})"
    return name


def _gpus() -> str:
    """Names of the GPUs; empty where NVIDIA's tool does not find any."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
        )
    except OSError:
        return ""
    return ", ".join(answer.stdout.splitlines()) if answer.returncode == 0 else ""


def versions() -> dict[str, str]:
    """Versions of the packages that the numbers depend on, as far as installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that was measured; empty outside a checkout, or without git."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return answer.stdout.strip()


def write(
    path: Path, name: str, seed: int, results: dict[str, Any], packages: Mapping[str, str] | None = None
) -> None:
    """Write `results` as JSON under a head that says what they are results of.

    `packages`: versions of packages that other processes ran, beside those of this one.
    """
    head = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "seed": seed,
        "machine": machine(),
        "versions": versions() | dict(packages or {}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(head | {"results": results}) + "\n")


def as_json(value: Any, indent: str = "") -> str:
    """`value` as JSON for people: what fits into a line is in one, all else has a line for each part."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= WIDTH:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key))}: {as_json(part, inner)}" for key, part in value.items()]
    else:
        parts = [as_json(part, inner) for part in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{last}"


def read(path: Path) -> Record:
    """What `write` wrote. Raises `ValueError` for anything else."""
    try:
        return Record(name=path.stem, **json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result file: {error}") from error


def read_all(folder: Path) -> list[Record]:
    """All result files of a folder, by name. Raises `ValueError`."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines of a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, interpolated between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def percentiles(values: Sequence[float], shares: Iterable[float], digits: int) -> dict[str, float]:
    """The percentiles by their names, such as `p99`, rounded. `shares`: from 0 to 100."""
    return {f"p{share:g}": round(percentile(values, share / 100), digits) for share in shares}
