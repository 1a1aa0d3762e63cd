"""Rotary embeddings and attention windows of all layers in config.json."""

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
    full = windowed = values
    if given.get("full_attention"):
        full, windowed = (
            values.but(key, given.get(kind)) for kind in ("full_attention", "sliding_attention")
        )
    elif values.get("rope_local_base_freq"):
        windowed = values.but(key, {"rope_theta": values.number("rope_local_base_freq")})
    theta, longest = values.number("rope_theta", 10000.0), values.positive("max_position_embeddings", 2048)
    of_full, of_windowed = (
        read_rope(each, key, head_dim, theta, longest, family.scales_queries, family.rotates_in_part)
        for each in (full, windowed)
    )
    rotates = _rotated(family, values, windows)
    return tuple(
        (of_windowed if window else of_full) if rotated else RopeConfig()
        for window, rotated in zip(windows, rotates, strict=True)
    )


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
    """Attention window of each layer.

    `layer_types` names the layers with a sliding window; see `_types` for where it is missing.
    """
    if not family.windowed or values.get("sliding_window") is None:
        return (0,) * layers
    if not values.flag("use_sliding_window", "use_sliding_window" not in values.values):
        return (0,) * layers
    window = values.positive("sliding_window")
    if family.windowed == "everywhere":
        return (window,) * layers
    types = values.get("layer_types") or _types(family, values, layers)
    if not isinstance(types, list) or len(types) != layers:
        raise values.wrong("layer_types", f"a list of {layers} is needed, not {types!r}")
    if unknown := [kind for kind in types if kind not in ("sliding_attention", "full_attention")]:
        raise values.wrong("layer_types", f"{unknown[0]!r} is not supported")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _types(family: Family, values: Values, layers: int) -> list[str]:
    """Kind of each layer by `sliding_window_pattern`.

    A number: the layers from `max_window_layers` on (default: all) have a window, except each one of that
    number. A text, as of EXAONE 4: L for a layer with a window and G for one without, again and again; the
    last layer has none. In SmolLM 3 the layers without rotary embedding have a window.
    """
    pattern = values.get("sliding_window_pattern")
    if values.get("no_rope_layer_interval") is not None:
        windowed = [not rotated for rotated in _rotated(family, values, (0,) * layers)]
    elif family.windowed == "alternately":
        windowed = [layer % 2 == 0 and layer < values.count("max_window_layers") for layer in range(layers)]
    elif isinstance(pattern, str) and pattern and set(pattern) <= set("LG"):
        windowed = [pattern[layer % len(pattern)] == "L" for layer in range(layers - 1)] + [False]
    else:
        every = values.positive("sliding_window_pattern", layers + 1)
        first = values.get("max_window_layers", 0)
        windowed = [layer >= first and (layer + 1) % every > 0 for layer in range(layers)]
    return ["sliding_attention" if each else "full_attention" for each in windowed]
