"""Perplexity of a text, beside that of transformers."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from ops.cli.main import main
from ops.model_directory.settings import SHIPPED_DRAFT
from ops.quantize import perplexity as module
from ops.quantize.perplexity import perplexity

TEXT = "Once upon a time there was a fox who lived in a small house near the river. " * 2


def test_it_is_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 16)
    monkeypatch.setenv("QUIRE_DTYPE", "float32")
    tokens = AutoTokenizer.from_pretrained(SHIPPED_DRAFT)(TEXT, add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(SHIPPED_DRAFT, dtype=torch.float32)
    total = 0.0
    for first in range(0, len(tokens) - 1, 15):
        piece = torch.tensor(tokens[first : first + 16])
        with torch.inference_mode():
            logits = model(piece[None, :-1]).logits[0]
        total += cross_entropy(logits, piece[1:], reduction="sum").item()
    assert perplexity(SHIPPED_DRAFT, TEXT) == pytest.approx(math.exp(total / (len(tokens) - 1)), rel=1e-4)


def test_a_text_without_tokens() -> None:
    with pytest.raises(ValueError, match="fewer than two tokens"):
        perplexity(SHIPPED_DRAFT, "a")


def test_a_classifier_has_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to(SHIPPED_DRAFT / "tokenizer.json")
    config = json.loads((SHIPPED_DRAFT / "config.json").read_text())
    config["architectures"] = ["LlamaForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="a classifier has no perplexity"):
        perplexity(tmp_path, TEXT)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ["quantize", str(SHIPPED_DRAFT), str(tmp_path / "copy"), "--to", "int8"]
    assert main([*asked, "--text", str(tmp_path / "text.txt")]) == 0
    out = capsys.readouterr().out
    assert "perplexity of text.txt: " in out
    assert " times the original's " in out
    assert "% in int8" in out
    assert main(asked) == 2
    assert "copy exists already" in capsys.readouterr().err
