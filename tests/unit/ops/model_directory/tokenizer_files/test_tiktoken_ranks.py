"""A model with tiktoken's ranks and no tokenizer.json, beside a plain version of tiktoken's algorithm."""

import json
import re
from base64 import b64encode
from pathlib import Path

import pytest

from ops.model_directory import tokenizer_json
from ops.model_directory.hub import HubError, fetched
from ops.model_directory.settings import SHIPPED_DRAFT
from tests.support.byte_tokens import TEXTS, plainly, trained
from tokenizer_svc.model.tokenizer import TextModel

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]*"
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]+{WORDS}",
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]+"
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]*{WORDS}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""How Kimi K2's own code splits text."""

MARKED = "<|im_end|>told<|im_user|>user"
SPECIAL = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|im_user|>": 5}
"""Text of special tokens, and how far their ids are from the first."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "moon"
    directory.mkdir()
    tokens = trained()
    lines = (f"{b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (directory / "tiktoken.model").write_text("".join(lines))
    added = {
        str(len(tokens) + place): {"content": text, "special": text != "<|im_user|>"}
        for text, place in SPECIAL.items()
    }
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added, "eos_token": "[EOS]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    values = json.loads((SHIPPED_DRAFT / "config.json").read_text()) | {"vocab_size": len(tokens) + 64}
    values |= {"eos_token_id": len(tokens) + 1, "bos_token_id": None}
    (directory / "config.json").write_text(json.dumps(values))
    return directory


def test_tokens_are_those_of_tiktoken(model: Path) -> None:
    directory, ranks = fetched(model), {token: rank for rank, token in enumerate(trained())}
    assert directory != model
    assert directory.name == model.name
    found = TextModel.load(directory)
    for text in [*TEXTS, *Path(__file__).read_text().splitlines(keepends=True)]:
        if "<|im_" in text or "[BOS]" in text or "[EOS]" in text:
            continue
        assert found.encode(text, special=True) == plainly(ranks, SPLIT, text), text
    first = len(ranks)
    assert found.encode(MARKED, special=True) == [
        *(first + 2, *plainly(ranks, SPLIT, "told")),
        *(first + 5, *plainly(ranks, SPLIT, "user")),
    ]
    assert found.end_tokens == (first + 1,)
    assert found.special_tokens[f"<|reserved_token_{first + 3}|>"] == first + 3
    assert "<|im_user|>" not in found.special_tokens


def test_merges_that_would_take_too_long(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_json, "MOST_CUT", 1000)
    with pytest.raises(
        HubError, match=rf"^{model}/tiktoken\.model: \d+ tokens with \d+ characters have too many merges$"
    ):
        fetched(model)


def test_it_is_made_once_and_again_when_a_file_changes(model: Path) -> None:
    first = fetched(model)
    assert fetched(model) == first
    assert (first / "config.json").resolve() == model / "config.json"
    (model / "model.safetensors").write_bytes(bytes(8))
    (model / "gone.json").symlink_to(model / "nowhere")
    second = fetched(model)
    assert second != first
    assert (second / "model.safetensors").exists()
    (model / "tokenizer.json").write_text("{}")
    assert fetched(model) == model


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "tokenizer_config.json",
            lambda text: text.replace("TikTok", "Tick"),
            "'TickenTokenizer' with tiktoken",
        ),
        (
            "tokenizer_config.json",
            lambda text: text.replace('"content"', '"contents"'),
            "not tokens by",
        ),
        ("tokenizer_config.json", lambda text: re.sub(r'"(\d+)":', r'"9\1":', text), "are expected"),
        ("tiktoken.model", lambda text: text.replace(" 5\n", " 6\n"), "line 6: the rank is 6, not 5"),
        ("tiktoken.model", lambda text: text.replace(" 300\n", "\n"), "line 301: not enough values"),
        ("tiktoken.model", lambda text: "@" + text, "line 1: "),
        ("tiktoken.model", lambda text: text + "QUFB" * 10**6 + " 700\n", "3000000 bytes are too many"),
        ("tiktoken.model", lambda text: text.replace("IQ== ", "Ig== "), "was there before"),
        ("tiktoken.model", lambda text: "\n".join(text.splitlines()[:99]), "no token is the byte"),
    ],
)
def test_what_is_wrong_is_one_line(model: Path, name: str, change, message: str) -> None:
    path = model / name
    path.write_text(change(path.read_text()))
    with pytest.raises(HubError) as error:
        fetched(model)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
