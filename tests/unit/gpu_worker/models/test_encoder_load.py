"""Encoders from model directories of all ages, and what is refused of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.encoder_load import LONGEST, usual_length
from gpu_worker.models.load import load_model
from gpu_worker.startup.load import load, populate_memory
from gpu_worker.startup.warmup import full_step
from scheduler_svc.core.request import Pooling
from tests.support.closed_loop import ClosedLoop
from tests.unit.gpu_worker.models.test_encoder import (
    FAMILIES,
    LENGTHS,
    SIZES,
    own,
    pooled,
    request,
    runner_of,
    saved,
)


def changed(directory: Path, **keys: Any) -> None:
    """Change keys of config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def rewritten(
    directory: Path, names: dict[str, str | None], more: dict[str, torch.Tensor] | None = None
) -> None:
    """Replace parts of tensors' names, leave out those whose part becomes None, and add others."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for old, new in names.items():
        tensors = {
            name.replace(old, new or ""): tensor
            for name, tensor in tensors.items()
            if new is not None or old not in name
        }
    save_file({**tensors, **(more or {})}, path, metadata={"format": "pt"})


def check(directory: Path, model: Any) -> None:
    """The encoder in `directory` gives the hidden states of `model`."""
    found = ClosedLoop(runner_of(directory)).embed(*(request(each, Pooling.CLS) for each in LENGTHS))
    wanted = [pooled(own(model, length).last_hidden_state, Pooling.CLS) for length in LENGTHS]
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["Bert", "XLMRoberta", "ModernBert"])
def test_the_head_of_a_masked_language_model_is_left_out(tmp_path: Path, family: str) -> None:
    model = saved(tmp_path, family, "ForMaskedLM")
    check(tmp_path, getattr(model, model.base_model_prefix))


def test_names_of_old_checkpoints(tmp_path: Path) -> None:
    model = saved(tmp_path, "Bert")
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    more = {
        "embeddings.position_ids": torch.arange(66)[None],
        "cls.predictions.bias": torch.zeros(97),
    }
    rewritten(tmp_path, names, more)
    check(tmp_path, model)


def test_a_checkpoint_without_a_pooler(tmp_path: Path) -> None:
    model = saved(tmp_path, "Bert")
    rewritten(tmp_path, {"pooler": None})
    check(tmp_path, model)


@pytest.mark.parametrize(
    ("head", "names", "more", "message"),
    [
        ("Model", {"layer.1.output.dense": None}, {}, "tensor encoder.layer.1.output.dense.bias is missing"),
        ("ForSequenceClassification", {"pooler": None}, {}, "tensor bert.pooler.dense.bias is missing"),
        ("ForSequenceClassification", {"classifier": None}, {}, "tensor classifier.bias is missing"),
        (
            "Model",
            {},
            {"encoder.layer.2.output.dense.weight": torch.zeros(32, 48)},
            "does not account for tensor encoder.layer.2",
        ),
        (
            "Model",
            {"word_embeddings": None},
            {"embeddings.word_embeddings.weight": torch.zeros(90, 32)},
            r"word_embeddings.weight has shape \[90, 32\]",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    tmp_path: Path, head: str, names: Any, more: dict[str, torch.Tensor], message: str
) -> None:
    saved(tmp_path, "Bert", head)
    rewritten(tmp_path, names, more)
    with pytest.raises(ModelError, match=message) as caught:
        runner_of(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_encoder_within_a_model_that_also_sees(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = transformers.EmbeddingGemma2TextConfig(**SIZES | FAMILIES["EmbeddingGemma2Text"])
    config = transformers.EmbeddingGemma2Config(text_config=text, vision_config=None, audio_config=None)
    model = transformers.EmbeddingGemma2Model(config).eval()
    model.save_pretrained(tmp_path)
    rewritten(tmp_path, {}, {"vision_tower.patch.weight": torch.ones(2, 2)})
    check(tmp_path, model)


NOMIC = {
    **{"n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 2, "layer_norm_epsilon": 1e-12},
    **{"max_trained_positions": 66, "rotary_emb_base": 500, "activation_function": "swiglu"},
    **{"qkv_proj_bias": False, "rotary_emb_fraction": 1.0, "rotary_scaling_factor": None},
}


def test_a_config_for_nomic_s_own_code(tmp_path: Path) -> None:
    model = saved(tmp_path, "NomicBert", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    kept = {key: getattr(model.config, key) for key in ("architectures", "vocab_size", "pad_token_id")}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nomic_bert"} | kept | NOMIC))
    check(tmp_path, model)
    changed(tmp_path, activation_function="gelu")
    with pytest.raises(ModelError, match="activation_function: 'gelu' is not supported, but 'swiglu'"):
        runner_of(tmp_path)


def test_a_model_whose_code_computes_in_float32_alone(tmp_path: Path) -> None:
    saved(tmp_path, "Deberta")
    with pytest.raises(ModelError, match=r"cannot compute in bfloat16, but in float32 \(QUIRE_DTYPE\)"):
        load_model(tmp_path, torch.device("cpu"), ReferenceKernels(), torch.bfloat16)


def test_a_decoder_of_this_name(tmp_path: Path) -> None:
    saved(tmp_path, "Bert")
    changed(tmp_path, is_decoder=True)
    with pytest.raises(ModelError, match="is_decoder: true is not supported"):
        runner_of(tmp_path)


@pytest.mark.parametrize("given", [{}, {"host_memory": 2**20, "kv_dtype": "fp8", "dtype": "bfloat16"}])
def test_a_whole_start(settings: Any, tmp_path: Path, given: dict[str, Any]) -> None:
    """Whatever is set for keys and values: an encoder keeps none."""
    model = saved(tmp_path, "Roberta", "ForSequenceClassification", num_labels=3)
    runner = load(settings(model=tmp_path, kernels="torch", step_tokens=16, block_size=4, **given))
    limits = runner.limits
    assert (limits.max_model_len, limits.block_size, limits.max_step_tokens) == (64, 64, 64)
    assert (runner.caches, runner.host.slots) == ([], 0)
    populate_memory(runner)
    assert not runner.execute(full_step(limits)).errors
    found = ClosedLoop(runner).embed(*(request(each, Pooling.CLASSIFY) for each in LENGTHS))
    wanted = torch.stack([own(model, length).logits[0] for length in LENGTHS])
    exact = runner.dtype is torch.float32
    torch.testing.assert_close(
        torch.stack(found), wanted, atol=1e-5 if exact else 0.1, rtol=0.1 * (not exact)
    )


def test_a_text_is_as_long_as_sentence_transformers_lets_it_be(settings: Any, tmp_path: Path) -> None:
    assert usual_length(tmp_path, 262_144) == LONGEST
    (tmp_path / "sentence_bert_config.json").write_text("{}")
    assert usual_length(tmp_path, 262_144) == LONGEST
    saved(tmp_path, "Bert")
    file = tmp_path / "sentence_bert_config.json"

    def longest(**given: Any) -> int:
        return load(settings(model=tmp_path, kernels="torch", **given)).limits.max_model_len

    for given, most in (("{}", 66), ('{"max_seq_length": null}', 66), ('{"max_seq_length": 999}', 66)):
        file.write_text(given)
        assert longest() == most
    file.write_text('{"max_seq_length": 32, "do_lower_case": false}')
    assert (longest(), longest(max_model_len=60)) == (32, 60)
    file.write_text('{"max_seq_length": "long"}')
    with pytest.raises(ModelError, match="max_seq_length: a positive integer"):
        longest()


def test_settings_that_are_for_decoders(settings: Any, tmp_path: Path) -> None:
    saved(tmp_path, "Bert")
    for given, message in (
        ({"quantization": "int8"}, "QUIRE_QUANTIZATION=int8: the weights of an encoder"),
        ({"draft_model": tmp_path}, "an encoder generates nothing"),
        ({"tensor_parallel": 2}, "cannot be split"),
        ({"max_model_len": 67}, "with 66 tokens at most"),
    ):
        with pytest.raises(ModelError, match=message):
            load(settings(model=tmp_path, kernels="torch", **given))
