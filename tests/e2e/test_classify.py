"""Cross-encoders, a decoder and an encoder, served end to end: their scores are transformers' own."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from ops.launcher.redis_server import RedisServer
from tests.support.deployment import SHIPPED_MODEL, Deployment
from tests.unit.gpu_worker.behaviour.test_families import random_model
from tests.unit.gpu_worker.models.test_encoder import saved
from tests.unit.tokenizer_svc.behaviour.test_encoders import word_piece

QUERY = "a fox"
DOCUMENTS = ["A fox in the snow.", "What is 7 + 5?", "The owl told a story. " * 40]


def decoder(directory: Path) -> None:
    changes = {"hidden_size": 64, "vocab_size": 4096, "num_labels": 1, "max_position_embeddings": 1024}
    random_model("LlamaForSequenceClassification", changes).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED_MODEL / name, directory)


def encoder(directory: Path) -> None:
    """It has token types, and a tokenizer that lowers letters and marks the second text of a pair."""
    saved(directory, "Bert", "ForSequenceClassification", num_labels=1, max_position_embeddings=1024)
    letters = sorted({*"".join((QUERY, *DOCUMENTS)).lower().replace(" ", "")})
    word_piece([*letters, *(f"##{letter}" for letter in letters)]).save(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module", params=[decoder, encoder])
def scoring(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """A random classifier with one label."""
    model = tmp_path_factory.mktemp("models") / "scoring"
    request.param(model)
    deployment = Deployment(redis_server, tmp_path_factory.mktemp("scoring-logs"), model)
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()


def ask(deployment: Deployment, path: str, **body: Any) -> httpx.Response:
    return httpx.post(deployment.url + path, json={"model": deployment.model_name, **body}, timeout=120)


def test_scores_are_those_of_transformers(scoring: Deployment) -> None:
    directory = Path(scoring.environment["QUIRE_MODEL"])
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))

    def score(*texts: str) -> float:
        types = model.config.model_type == "bert"
        given = tokenizer(*texts, return_tensors="pt", return_token_type_ids=types)
        with torch.inference_mode():
            return float(model(**given).logits[0].sigmoid())

    scores = [score(QUERY, document) for document in DOCUMENTS]
    found = ask(scoring, "/v1/score", text_1=QUERY, text_2=DOCUMENTS).json()
    assert [one["score"] for one in found["data"]] == pytest.approx(scores, abs=1e-4)
    assert found["usage"]["prompt_tokens"] == sum(
        len(tokenizer(QUERY, each)["input_ids"]) for each in DOCUMENTS
    )
    ranked = ask(scoring, "/v1/rerank", query=QUERY, documents=DOCUMENTS).json()["results"]
    assert [one["relevance_score"] for one in ranked] == pytest.approx(sorted(scores, reverse=True), abs=1e-4)
    labels = ask(scoring, "/v1/classify", input=DOCUMENTS).json()["data"]
    assert [one["probs"] for one in labels] == [[pytest.approx(score(each), abs=1e-4)] for each in DOCUMENTS]
    assert {(one["label"], one["num_classes"]) for one in labels} == {("LABEL_0", 1)}
    refused = ask(scoring, "/v1/completions", prompt=QUERY)
    assert refused.status_code == 400
    assert "classifies texts" in refused.json()["error"]["message"]
    refused = ask(scoring, "/v1/classify", input=[[5] * 1025])
    assert refused.status_code == 400
    assert "1024" in refused.json()["error"]["message"]
