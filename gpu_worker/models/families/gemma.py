"""Gemma: scaled embeddings, and from Gemma 2 on norms before and after attention and MLP."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family, Names

_GEMMA = Family(
    norm="rms_one_plus",
    means={"hidden_act": {"gelu": "gelu_pytorch_tanh"}},  # in files of the first release
    defaults={
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
    },
    expects={"use_bidirectional_attention": False},
    scales_embeddings=True,
)
_KEYS = {"hidden_act": "hidden_activation"}
_DEFAULTS = {
    **_GEMMA.defaults,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
PRE_AND_POST_NORMS = Names(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)

FAMILIES: Mapping[str, Family] = {
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": replace(
        _GEMMA,
        reads=("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        keys=_KEYS,
        names=PRE_AND_POST_NORMS,
        defaults={
            **_DEFAULTS,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        windowed=2,
    ),
    "Gemma3ForCausalLM": replace(
        _GEMMA,
        reads=("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
        keys=_KEYS,
        names=replace(PRE_AND_POST_NORMS, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
        defaults={
            **_DEFAULTS,
            "max_position_embeddings": 131072,
            "sliding_window_pattern": 6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
        expects={**_GEMMA.expects, "attn_logit_softcapping": None},
        window_base="rope_local_base_freq",
        windowed="by_pattern",
    ),
}
