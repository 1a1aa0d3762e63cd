"""Mixtures of experts in config.json: sizes, layers with experts, groups of experts."""

from dataclasses import dataclass

from gpu_worker.models.families.family import Experts
from gpu_worker.models.values import Values


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts."""

    num_experts: int
    """Number of experts, without the shared one."""
    experts_per_token: int
    """Number of experts that each token goes to, without the shared one."""
    intermediate_size: int
    """Intermediate size of one expert."""
    normalized: bool
    """The routing weights of a token are divided by their sum."""
    layers: frozenset[int]
    """Layers with experts. The others have an MLP."""
    shared_intermediate_size: int = 0
    """Intermediate size of the shared expert, which every token goes to. 0: there is none."""
    latent_size: int = 0
    """Dimensions that experts read and write. 0: those of hidden states."""
    num_groups: int = 1
    """Number of expert groups. 1: experts have no groups."""
    top_k_groups: int = 1
    """Number of groups that a token selects its experts from."""
    scale: float = 1.0
    """Factor of routing weights, after normalization."""
    gate_alpha: float = 1.702
    """Steepness of the gate of experts that are clamped."""
    gate_limit: float = 7.0
    """Bound of their gate and up."""


def read_experts(experts: Experts | None, values: Values, layers: int) -> ExpertsConfig | None:
    """The mixture of experts that config.json describes. Raises `ModelError` with the key at fault."""
    if experts is None or not (with_experts := _expert_layers(values, layers)):
        return None
    size = values.positive(experts.intermediate_size)
    num_experts, top_k = values.positive("num_experts"), values.positive("num_experts_per_tok")
    num_groups, top_k_groups = _groups(experts, values, num_experts) if experts.grouped else (1, 1)
    selectable = num_experts // num_groups * top_k_groups
    if top_k > selectable:
        raise values.wrong("num_experts_per_tok", f"{top_k} of {selectable} experts")
    return ExpertsConfig(
        num_experts,
        top_k,
        size,
        values.fact(experts.normalized),
        with_experts,
        values.count("shared_expert_intermediate_size", size * values.count("n_shared_experts")),
        values.count("moe_latent_size") if experts.latent else 0,
        num_groups,
        top_k_groups,
        values.number("routed_scaling_factor", 1.0),
        values.number("swiglu_alpha", 1.702),
        values.number("swiglu_limit", 7.0),
    )


def _expert_layers(values: Values, layers: int) -> frozenset[int]:
    """Numbers of the layers with experts: multiples of moe_layer_freq, from 0, and of decoder_sparse_step,
    from 1.

    The first `first_k_dense_replace` layers and `mlp_only_layers` have an MLP instead. `mlp_layer_types`
    names the kind of each layer, and no other key counts then.
    """
    if kinds := values.get("mlp_layer_types"):
        if not isinstance(kinds, list) or len(kinds) != layers or not {"dense", "sparse"}.issuperset(kinds):
            raise values.wrong("mlp_layer_types", f"dense or sparse for each of {layers} layers is needed")
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    every, freq = values.positive("decoder_sparse_step", 1), values.positive("moe_layer_freq", 1)
    first, dense = values.count("first_k_dense_replace"), values.get("mlp_only_layers", [])
    return frozenset(
        layer
        for layer in range(first, layers)
        if layer not in dense and (layer + 1) % every == 0 and layer % freq == 0
    )


def _groups(experts: Experts, values: Values, num_experts: int) -> tuple[int, int]:
    """Number of expert groups, and number of groups that a token selects its experts from.

    `topk_method` counts in DeepSeek V2, whose scores are softmax's. Others have groups whatever it says.
    """
    method = values.get("topk_method", "noaux_tc")
    if method == "greedy" and experts.scoring_func == "softmax":
        return 1, 1
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise values.wrong("topk_method", f"{method!r} is not one of greedy, group_limited_greedy, noaux_tc")
    num_groups, top_k_groups = values.positive("n_group", 1), values.positive("topk_group", 1)
    if num_experts % num_groups or top_k_groups > num_groups:
        raise values.wrong("topk_group", f"{top_k_groups} of {num_groups} groups of {num_experts} experts")
    return num_groups, top_k_groups
