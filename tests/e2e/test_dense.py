"""A model like EmbeddingGemma, served end to end: Gemma 3 as an encoder, a mean and two linear layers.

Embeddings are those that transformers and torch.nn.Linear compute.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedTokenizerFast

from ops.launcher.redis_server import RedisServer
from tests.support.dense import dense, write
from tests.support.deployment import SHIPPED_MODEL, Deployment
from tests.unit.gpu_worker.models.test_encoder import saved

TEXTS = ["A fox in the snow.", "What is 7 + 5?", "The owl told a story. " * 40]

Embedding = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def served(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Deployment, Embedding]]:
    """The deployment, and what its layers make of a pooled vector."""
    model = tmp_path_factory.mktemp("models") / "embedding"
    saved(model, "Gemma3Text", vocab_size=4096, max_position_embeddings=1024)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED_MODEL / name, model)
    embedding = write(model, [dense(32, 96), dense(96, 40)])
    deployment = Deployment(redis_server, tmp_path_factory.mktemp("embedding-logs"), model)
    try:
        yield deployment.start(), embedding
        deployment.assert_clean()
    finally:
        deployment.stop()


def test_embeddings_go_through_the_layers(served: tuple[Deployment, Embedding]) -> None:
    deployment, embedding = served
    directory = Path(deployment.environment["QUIRE_MODEL"])
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))

    def ask(path: str = "/v1/embeddings", **body: Any) -> httpx.Response:
        return httpx.post(deployment.url + path, json={"model": deployment.model_name, **body}, timeout=120)

    with torch.inference_mode():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]

    def check(answer: httpx.Response, pooled: Callable[[Tensor], Tensor], dimensions: int) -> None:
        wanted = torch.stack([embedding(pooled(each))[:dimensions] for each in states])
        found = torch.tensor([one["embedding"] for one in answer.json()["data"]])
        torch.testing.assert_close(found, torch.nn.functional.normalize(wanted, dim=1), atol=2e-5, rtol=1e-3)

    check(ask(input=TEXTS), lambda states: states.mean(0), 40)
    check(ask(input=TEXTS, dimensions=10), lambda states: states.mean(0), 10)
    check(ask(input=TEXTS, pooling="last"), lambda states: states[-1], 40)
    refused = ask(input=TEXTS, dimensions=41)
    assert refused.status_code == 400
    assert "40 dimensions, not 41" in refused.json()["error"]["message"]
    for one, each in zip(
        ask("/pooling", input=TEXTS, task="token_embed").json()["data"], states, strict=True
    ):
        torch.testing.assert_close(torch.tensor(one["data"]), embedding(each), atol=2e-5, rtol=1e-3)
