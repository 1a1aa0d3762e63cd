"""Norms behind each block alone: OLMo from 2 on, and EXAONE 4. In the first OLMo: layer norms, bare."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family
from gpu_worker.models.families.gemma import SANDWICHED

_OLMO2 = Family(
    names=replace(
        SANDWICHED,
        before_attention=None,
        before_mlp=None,
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
    ),
    defaults={"rms_norm_eps": 1e-5},
    norm="wide",
    norms_whole=True,
)

FAMILIES: Mapping[str, Family] = {
    "OlmoForCausalLM": Family(defaults={"norm_eps": 1e-5}, norm="bare", mlp_bias=False),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": replace(
        _OLMO2,
        keys={"rope_local_base_freq": "rope_theta"},
        defaults={
            **_OLMO2.defaults,
            "rope_theta": 5e5,
            "rope_local_base_freq": 5e5,
            "sliding_window_pattern": 4,
        },
        windowed=True,
    ),
    "Exaone4ForCausalLM": Family(
        names=_OLMO2.names,
        defaults={"rms_norm_eps": 1e-5, "sliding_window_pattern": 4},
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        rotates_unwindowed=False,
        windowed=True,
    ),
}
