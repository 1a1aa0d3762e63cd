"""Traces: files of requests with their times, lengths, shared prefixes and tenants.

A trace is JSON lines or CSV (by the file's suffix: .jsonl or .csv) with these fields, in order of time:

    at               seconds from the start
    prompt_tokens    length of the prompt
    output_tokens    length of the answer
    prefix           name of the prefix with which the prompt begins (optional)
    shared_tokens    length of that prefix, at most the prompt's (optional)
    tenant           name of the tenant (optional)
    priority         for the policy `priority`: lower is earlier (optional)
    timeout          seconds in which the answer is wanted (optional)
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

FIELDS = ("at", "prompt_tokens", "output_tokens", "prefix", "shared_tokens", "tenant", "priority", "timeout")


class TraceError(ValueError):
    """A trace that cannot be read; the message names the line."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A further question of a conversation. Its prompt is the conversation before it and new tokens."""

    prompt_tokens: int
    """New tokens of the prompt."""
    output_tokens: int
    """Tokens of the answer."""
    pause: float
    """Seconds between the end of the answer before and this question."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the further questions of its conversation."""

    at: float
    """Time from the start at which the request arrives. Seconds."""
    prompt_tokens: int
    """Tokens of the prompt."""
    output_tokens: int
    """Tokens of the answer."""
    prefix: str = ""
    """Name of the prefix with which the prompt begins. Empty: the prompt has none."""
    shared_tokens: int = 0
    """Tokens of that prefix, which all prompts with it have in common."""
    tenant: str = ""
    """Name of the tenant."""
    priority: int = 0
    """Priority. Lower is earlier."""
    timeout: float = inf
    """Seconds in which the answer is wanted. A later answer is computed, too."""
    turns: tuple[Turn, ...] = ()
    """Further questions of the conversation, in order."""

    def __post_init__(self) -> None:
        if not (isfinite(self.at) and self.at >= 0):
            raise ValueError(f"at={self.at}: must be 0 or more")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError("prompt_tokens and output_tokens must be at least 1")
        if not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout}: must be above 0")
        if not 0 <= self.shared_tokens <= self.prompt_tokens:
            raise ValueError(f"shared_tokens={self.shared_tokens}: must be 0 to prompt_tokens")
        if self.shared_tokens and not self.prefix:
            raise ValueError("shared_tokens without a prefix")


def read(path: Path) -> Iterator[Arrival]:
    """Read the requests of a trace one by one. Raises `TraceError` and `OSError`."""
    rows = {".jsonl": _json_lines, ".csv": _csv_lines}.get(path.suffix)
    if rows is None:
        raise TraceError(f"{path}: must end in .jsonl or .csv")
    latest = 0.0
    for number, fields in rows(path):
        try:
            arrival = _arrival(fields)
            if arrival.at < latest:
                raise ValueError(f"at={arrival.at} comes after {latest}")
        except (ValueError, TypeError, KeyError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise TraceError(f"{path}:{number}: {reason}") from None
        latest = arrival.at
        yield arrival


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
            except ValueError as error:
                raise TraceError(f"{path}:{number}: {error}") from None
            if not isinstance(fields, dict):
                raise TraceError(f"{path}:{number}: must be an object")
            yield number, fields


def _csv_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            for fields in reader:
                if None in fields or None in fields.values():
                    raise TraceError(f"{path}:{reader.line_num}: must have as many fields as the first line")
                yield reader.line_num, {name: value for name, value in fields.items() if value != ""}
        except csv.Error as error:
            raise TraceError(f"{path}:{reader.line_num}: {error}") from None


def _arrival(fields: dict[str, Any]) -> Arrival:
    if unknown := fields.keys() - set(FIELDS):
        raise ValueError(f"no such field: {', '.join(sorted(unknown))}")
    return Arrival(
        at=float(fields["at"]),
        prompt_tokens=_whole(fields["prompt_tokens"]),
        output_tokens=_whole(fields["output_tokens"]),
        prefix=str(fields.get("prefix", "")),
        shared_tokens=_whole(fields.get("shared_tokens", 0)),
        tenant=str(fields.get("tenant", "")),
        priority=_whole(fields.get("priority", 0)),
        timeout=float(fields.get("timeout", inf)),
    )


def _whole(value: Any) -> int:
    number = int(value)
    if number != float(value):
        raise ValueError(f"{value} is not a whole number")
    return number
