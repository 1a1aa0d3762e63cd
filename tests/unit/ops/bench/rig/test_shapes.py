"""A random model as other engines see it: through transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ops.bench.rig import shapes
from ops.tiny_model.training.tokenizer import SPECIAL_TOKENS
from tokenizer_svc.model.tokenizer import TextModel

SMALL = shapes.Shape(64, 2, 4, 2, 96, 4500, tied=False)
UNWRITTEN = len(SPECIAL_TOKENS) + 256


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_finite_and_the_best_token_is_letters(tmp_path, tied: bool) -> None:
    shape = shapes.Shape(64, 2, 4, 2, 96, 4500, tied=tied)
    shapes.write(shape, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    prompt = torch.randint(300, 4000, (2, 128), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(prompt).logits.float()
    assert logits.isfinite().all()
    assert 0.05 < logits[..., UNWRITTEN:].std() < 5
    assert (logits[..., :UNWRITTEN] == 0).all()
    assert (logits.argmax(-1) >= UNWRITTEN).all()


def test_every_token_has_a_text_of_its_own(tmp_path) -> None:
    shapes.write(SMALL, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == SMALL.vocabulary == TextModel.load(tmp_path).vocab_size
    texts = [loaded.decode([token]) for token in range(UNWRITTEN, SMALL.vocabulary)]
    assert len(set(texts)) == len(texts)
    assert all(text.isalnum() for text in texts)
    assert loaded.decode(loaded.encode("Grüße, 1 2 3!", add_special_tokens=False)) == "Grüße, 1 2 3!"


def test_a_seed_writes_the_same_and_another_does_not(tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        shapes.write(SMALL, tmp_path / name, seed)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="100"):
        shapes.tokenizer(100)
