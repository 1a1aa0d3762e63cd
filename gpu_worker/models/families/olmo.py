"""OLMo 2 and 3 and EXAONE 4: norms only after attention and MLP. OLMo 1: layer norms without weights."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family, biases
from gpu_worker.models.families.gemma import PRE_AND_POST_NORMS

OLMO_2 = Family(
    names=replace(
        PRE_AND_POST_NORMS,
        before_attention=None,
        before_mlp=None,
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
    ),
    defaults={"rms_norm_eps": 1e-5},
    norm="rms_float32",
    norms_all_heads=True,
)

FAMILIES: Mapping[str, Family] = {
    "OlmoForCausalLM": Family(
        reads=("clip_qkv",),
        defaults={"norm_eps": 1e-5},
        norm="layer_without_weight",
        mlp_bias=False,
    ),
    "Olmo2ForCausalLM": OLMO_2,
    "Olmo3ForCausalLM": replace(
        OLMO_2,
        defaults={**OLMO_2.defaults, "rope_theta": 5e5, "sliding_window": 4096},
        window_base=5e5,
        windowed=4,
    ),
    "Exaone4ForCausalLM": Family(
        names=OLMO_2.names,
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4},
        **biases(False),
        rotates_full_attention="sliding_window",
        windowed="by_pattern",
        left_out=("mtp.",),
    ),
}
