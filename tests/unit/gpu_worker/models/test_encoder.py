"""Encoders give what transformers' own code gives, whatever texts are computed beside each other."""

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models import encoder
from gpu_worker.models.encoder import Encoder
from gpu_worker.models.load import load_model
from gpu_worker.step.runner import Runner
from proto.sampling import greedy
from proto.sampling_pb2 import CLASSIFY, CLS, MEAN
from scheduler_svc.core.request import Pooling, Request
from tests.support.closed_loop import ClosedLoop
from tests.unit.gpu_worker.conftest import CPU, make_limits, new_slot, plan

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "initializer_range": 0.3,
    "pad_token_id": 1,
}
_DEBERTA = {"relative_attention": True, "position_biased_input": False, "position_buckets": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 24},
    "Bert": {},
    "Camembert": {"type_vocab_size": 1},
    "ConvBert": {"embedding_size": 32},
    "Data2VecText": {},
    "Deberta": {"relative_attention": True, "pos_att_type": "c2p|p2c"},
    "DebertaV2": _DEBERTA | {"pos_att_type": "p2c|c2p", "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "DistilBert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "Electra": {"embedding_size": 24},
    "EmbeddingGemma2Text": {
        **{"head_dim": 8, "num_key_value_heads": 2, "global_head_dim": 16, "num_global_key_value_heads": 1},
        **{"hidden_size_per_layer_input": 12, "embedding_dim": 24, "sliding_window": 10},
        **{"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4},
    },
    "Ernie": {"use_task_id": True},
    "EuroBert": {"num_key_value_heads": 2, "head_dim": 8, "classifier_pooling": "mean"},
    "Gte": {},
    "JinaEmbeddingsV3": {},
    "MegatronBert": {},
    "NomicBert": {},
    "RemBert": {"input_embedding_size": 24},
    "RobertaPreLayerNorm": {"type_vocab_size": 1},
    "Ultrabert": {
        **{"num_key_value_heads": 4, "head_dim": 8, "sliding_window": 8},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "XLMRobertaXL": {"type_vocab_size": 1},
    "Gemma3Text": {
        "head_dim": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "use_bidirectional_attention": True,
    },
    "MPNet": {},
    "ModernBert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "Roberta": {"type_vocab_size": 1},
    "XLMRoberta": {"type_vocab_size": 1},
}
POSITIONS = dict.fromkeys(
    ("Camembert", "Data2VecText", "MPNet", "Roberta", "RobertaPreLayerNorm", "XLMRoberta", "XLMRobertaXL"), 64
)
"""Longest texts of those who count positions from behind the padding token's."""
LENGTHS = (5, 1, 40, 17, 5, 63)
SECOND = 3


def text(length: int) -> list[int]:
    """Its fourth token is the padding token, as of a text that is spelled like it."""
    return [
        SIZES["pad_token_id"] if place == 3 else (7 * place * place + 3 * place + 5) % 95 + 2
        for place in range(length)
    ]


def saved(directory: Path, family: str, head: str = "Model", **changes: Any) -> Any:
    """A random model of transformers, saved to a directory. Norms and biases are no ones and zeros."""
    torch.manual_seed(0)
    kind = getattr(transformers, family + head)
    model = kind(kind.config_class(**{**SIZES, **FAMILIES[family], **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return model


def runner_of(directory: Path, **changes: Any) -> Runner:
    model = load_model(directory, CPU, ReferenceKernels(), torch.float32)
    config, longest = model.config, model.config.max_position
    sizes = {
        "vocab_size": config.vocab_size,
        "embedding_size": config.hidden_size,
        "num_labels": config.num_labels,
        "max_model_len": longest,
        "block_size": longest,
        "max_step_tokens": longest,
        "bidirectional": True,
    }
    return Runner(model, [], ReferenceKernels(), make_limits(**{**sizes, **changes}))


def request(length: int, pooling: Pooling, second: int = 0) -> Request:
    tokens = array("i", text(length))
    return Request("r", tokens, sampling=greedy(), pooling=pooling, second_segment=second)


def own(model: Any, length: int, second: int = 0) -> Any:
    """What the model's own code gives for a text alone."""
    given = {"input_ids": torch.tensor([text(length)])}
    if second and getattr(model.config, "type_vocab_size", 0) > 1:
        given["token_type_ids"] = (torch.arange(length) >= second).long()[None]
    with torch.inference_mode():
        return model(**given)


def pooled(hidden: Tensor, pooling: Pooling) -> Tensor:
    """`hidden`: [1, tokens, size]."""
    found = {Pooling.CLS: hidden[0, 0], Pooling.LAST: hidden[0, -1], Pooling.MEAN: hidden[0].mean(0)}
    return normalize(found[pooling], dim=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_of_texts_beside_each_other(tmp_path: Path, family: str) -> None:
    model = saved(tmp_path, family)
    loop = ClosedLoop(runner_of(tmp_path))
    assert loop.runner.limits.max_model_len == POSITIONS.get(family, 66)
    ways = (Pooling.MEAN, Pooling.CLS, Pooling.LAST)
    asked = [(length, way) for length in LENGTHS for way in ways]
    found = loop.embed(*(request(*each) for each in asked))
    wanted = [pooled(own(model, length).last_hidden_state, way) for length, way in asked]
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), atol=1e-5, rtol=0)
    assert max(loop.step_tokens) > 2 * 17  # texts of several lengths in one step


@pytest.mark.parametrize("family", ["Bert", "Gemma3Text", "ModernBert"])
def test_long_texts_in_bfloat16(tmp_path: Path, family: str) -> None:
    """Tables of rotary embeddings stay in float32: a rounded frequency is wrong far from the start."""
    wide = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4}
    model = saved(tmp_path, family, **wide, max_position_embeddings=520)
    theirs = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    found = load_model(tmp_path, CPU, ReferenceKernels(), torch.bfloat16)
    assert isinstance(found, Encoder)
    tokens, places = torch.tensor(text(512)), torch.arange(512)
    with torch.inference_mode():
        hidden = found.encode(tokens, places, torch.zeros_like(places), [512])
        wanted = theirs(input_ids=tokens[None]).last_hidden_state[0]
    assert (hidden - wanted).norm() < 0.004 * wanted.norm()


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"Gemma3Text", "EmbeddingGemma2Text"}))
def test_labels_of_pairs(tmp_path: Path, family: str, labels: int) -> None:
    model = saved(tmp_path, family, "ForSequenceClassification", num_labels=labels)
    loop = ClosedLoop(runner_of(tmp_path))
    asked = [(length, second) for length in LENGTHS for second in (0, SECOND) if length > second]
    found = loop.embed(*(request(length, Pooling.CLASSIFY, second) for length, second in asked))
    wanted = [own(model, *each).logits[0] for each in asked]
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), atol=1e-5, rtol=1e-5)
    if loop.runner.model._takes_types:  # type: ignore[attr-defined]
        assert not torch.allclose(found[0], found[1], atol=1e-3)  # types matter


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_what_the_head_of_modernbert_reads(tmp_path: Path, pooling: str) -> None:
    kind = "ForSequenceClassification"
    model = saved(tmp_path, "ModernBert", kind, num_labels=2, classifier_pooling=pooling)
    found = ClosedLoop(runner_of(tmp_path)).embed(*(request(each, Pooling.CLASSIFY) for each in LENGTHS))
    wanted = [own(model, length).logits[0] for length in LENGTHS]
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_the_trial_knows_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "Bert", "ForSequenceClassification")
    monkeypatch.setattr(Encoder, "scores", lambda self, hidden: hidden[:, :2])
    with pytest.raises(ModelError, match="something else than its own code"):
        runner_of(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(encoder, "_positions_of", lambda inner: (1, 65))
    with pytest.raises(ModelError, match="something else than its own code"):
        runner_of(tmp_path)


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ((0, 0, 4, 0), {"pooling": MEAN}, "not in order, or sampled"),
        ((0, 1, 4, 0), {"pooling": CLS}, "not in order, or sampled"),
        ((0, 0, 5, 1), {"pooling": CLS}, "not in order, or sampled"),
        ((0, 0, 5, 1), {}, "embeds texts, and can do nothing else"),
        ((0, 0, 5, 0), {"pooling": CLASSIFY}, "no classification head"),
        (
            (0, 0, 5, 0),
            {"pooling": CLS, "sampling": greedy(prompt_logprobs=0)},
            "embeds texts, and can do nothing else",
        ),
    ],
)
def test_plans_for_other_models(tmp_path: Path, row: Any, changes: dict[str, Any], message: str) -> None:
    saved(tmp_path, "Bert")
    new = new_slot(0, text(5), [0], **changes)
    (error,) = runner_of(tmp_path).execute(plan(1, [row], new_slots=[new])).errors
    assert message in error.message


def test_a_second_text_that_begins_nowhere(tmp_path: Path) -> None:
    """Its number is larger than any place, and than the worker's own numbers."""
    model = saved(tmp_path, "Bert")
    new = new_slot(0, text(5), [0], pooling=CLS, second_segment=2**32 - 1)
    result = runner_of(tmp_path).execute(plan(1, [(0, 0, 5, 0)], new_slots=[new]))
    found = torch.frombuffer(bytearray(result.embeddings.vectors), dtype=torch.float32)
    wanted = pooled(own(model, 5).last_hidden_state, Pooling.CLS)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_a_decoder_has_no_first_token_to_pool(tiny: SimpleNamespace, make: SimpleNamespace) -> None:
    new = make.slot(0, text(3), [0], pooling=CLS)
    (error,) = make.runner(tiny.directory).execute(make.plan(1, [(0, 0, 3, 0)], new_slots=[new])).errors
    assert error.message == "the first token of the model sees no other token"
