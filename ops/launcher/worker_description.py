"""What a worker's lease says of its machine and memory, in words for a person."""

from collections.abc import Mapping
from typing import Any


def describe(info: Mapping[str, Any]) -> str:
    """One line: model, device, number format and arithmetic, and how many requests fit."""
    said = f"{info.get('model')} on {info.get('device')} in {info.get('dtype')}"
    if arithmetic := info.get("arithmetic"):
        said += f" ({arithmetic})"
    blocks, size = _number(info, "blocks"), _number(info, "block_size")
    slots, longest = _number(info, "slots"), _number(info, "longest")
    if not (blocks and size and slots and longest):
        return said
    fit = min(slots, blocks // -(-longest // size))
    said += f"; KV for {blocks * size:,} tokens: {fit:,} requests of {longest:,} at once"
    return said if fit == slots else f"{said}, or {slots:,} of {blocks // slots * size:,}"


def _number(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    return value if isinstance(value, int) else 0
