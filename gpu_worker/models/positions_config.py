"""Rotary embeddings and attention windows of all layers in config.json."""

from collections.abc import Mapping
from typing import Any

from gpu_worker.models.families.family import Family
from gpu_worker.models.rope import RopeConfig, read_rope
from gpu_worker.models.values import Values


def read_ropes(
    family: Family, values: Values, head_dim: int, windows: tuple[int, ...]
) -> tuple[RopeConfig, ...]:
    """Rotary embedding of each layer.

    transformers 5 writes `rope_parameters`, earlier versions `rope_theta` and `rope_scaling`. Layers with a
    window may have another embedding than layers with full attention, as in Gemma 3. Some layers may have
    none, as in SmolLM 3.
    """
    key = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    given = values.object(key)
    base = given.values.get("rope_theta", values.values.get("rope_theta", "usual"))
    rotary = values.get(family.rotary) == "rope" if isinstance(family.rotary, str) else family.rotary
    if not rotary or values.fact(family.alibi) or (family.rotary_by_base and base is None):
        return (RopeConfig(),) * len(windows)
    theta, longest = values.number("rope_theta", 10000.0), values.positive("max_position_embeddings", 2048)

    def read(each: Values, key: str, theta: float) -> RopeConfig:
        return read_rope(each, key, head_dim, theta, longest, family.scales_queries, family.rotates_in_part)

    if family.window_base is None:
        of_full = of_windowed = read(values, key, theta)
    else:
        full, windowed = _by_kind(family, values)
        local = family.window_base
        local = values.number(local) if isinstance(local, str) else local
        of_full = read(values.but(key, full), key, theta)
        of_windowed = read(values.but(key, windowed), key, local)
    rotates = _rotated(family, values, windows)
    return tuple(
        (of_windowed if window else of_full) if rotated else RopeConfig()
        for window, rotated in zip(windows, rotates, strict=True)
    )


def _by_kind(family: Family, values: Values) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The objects of layers with full attention, which `rope_scaling` changes, and of those with a window."""
    given = values.object("rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    if given.values == {"rope_type": "default", "rope_theta": family.window_base}:
        given = given.object("full_attention")  # it says nothing: early versions of transformers 5 wrote it
    if given.values and not any(kind in given.values for kind in kinds):
        raise values.wrong("rope_parameters", f"an object for each of {', '.join(kinds)} is needed")
    full, windowed = (given.object(kind).values for kind in kinds)
    return {**full, **values.object("rope_scaling").values}, windowed


def _rotated(family: Family, values: Values, windows: tuple[int, ...]) -> list[Any]:
    """Whether each layer has a rotary embedding: by `no_rope_layers`, by `no_rope_layer_interval`, or by its
    window."""
    if (given := values.get("no_rope_layers")) is not None:
        if not isinstance(given, list) or len(given) != len(windows):
            raise values.wrong("no_rope_layers", f"a list of {len(windows)} is needed, not {given!r}")
        return given
    if values.get("no_rope_layer_interval") is not None:
        every = values.positive("no_rope_layer_interval")
        return [(layer + 1) % every > 0 for layer in range(len(windows))]
    full = family.rotates_full_attention
    everywhere = values.get(full) is None if isinstance(full, str) else full
    return [everywhere or window > 0 for window in windows]


def read_windows(family: Family, values: Values, layers: int) -> tuple[int, ...]:
    """Attention window of each layer: see `Family.windowed`. `layer_types` names the layers with one."""
    switch = "use_sliding_window"
    if not family.windowed or values.get("sliding_window") is None:
        return (0,) * layers
    if switch in family.defaults and not values.flag(switch):
        return (0,) * layers
    window = values.positive("sliding_window")
    types = None if family.windowed == "everywhere" else values.get("layer_types")
    if types is None:
        return tuple(window if each else 0 for each in _windowed(family, values, layers))
    if not isinstance(types, list) or len(types) != layers:
        raise values.wrong("layer_types", f"a list of {layers} is needed, not {types!r}")
    if unknown := [kind for kind in types if kind not in ("sliding_attention", "full_attention")]:
        raise values.wrong("layer_types", f"{unknown[0]!r} is not supported")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _windowed(family: Family, values: Values, layers: int) -> list[bool]:
    """Whether each layer has a window, where nothing names them.

    `sliding_window_pattern` may be a text, as of EXAONE 4: L for a layer with a window and G for one without,
    again and again; the last layer has none.
    """
    numbers, pattern, last = range(layers), values.get("sliding_window_pattern"), "max_window_layers"
    match family.windowed:
        case "everywhere" | "named":
            return [True] * layers
        case "late":
            return [number >= values.count(last) for number in numbers]
        case "alternately":
            return [number % 2 == 0 and number < values.count(last) for number in numbers]
        case "unrotated":
            return [not rotated for rotated in _rotated(family, values, (0,) * layers)]
        case "by_pattern" if isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):
            return [pattern[number % len(pattern)] == "L" for number in numbers[:-1]] + [False]
        case "by_pattern":
            every = values.positive("sliding_window_pattern")
        case every:
            pass
    return [(number + 1) % every > 0 for number in numbers]
