"""`quire up` with models that generate nothing or have other files: it comes up and says what it offers."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from ops.launcher.redis_server import free_port
from tests.support import oracle
from tests.support.dense import write_modules
from tests.support.deployment import ROOT, SHIPPED_MODEL
from tests.support.tekken import NEW, SPECIAL, tekken
from tests.unit.gpu_worker.behaviour.test_families import random_model
from tests.unit.gpu_worker.models.test_encoder import saved


@contextmanager
def up(model: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """What `quire up` says once it is there, and its URL."""
    port = free_port()
    command = [sys.executable, "-m", "ops.cli.main", "up", "--model", str(model), "--port", str(port)]
    environment = os.environ | {"XDG_STATE_HOME": str(folder), "QUIRE_DEVICE": "cpu", "QUIRE_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:  # the welcome ends with how to stop
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        said = "".join(lines)
        assert process.poll() is None, said
        yield said, f"http://127.0.0.1:{port}/v1"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("head", "endpoint"), [("Model", "v1/embeddings"), ("ForSequenceClassification", "v1/classify")]
)
def test_an_encoder_comes_up(tmp_path: Path, head: str, endpoint: str) -> None:
    model = tmp_path / "encoder"
    saved(model, "Bert", head, vocab_size=4096)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED_MODEL / name, model)
    with up(model, tmp_path) as (said, _):
        assert "answer  the first one took" in said
        assert endpoint in said
        assert "KV for" not in said


def test_a_model_without_a_head_comes_up(tmp_path: Path) -> None:
    """As Qwen3-Embedding-8B: the head is not tied, and the checkpoint has none."""
    model = tmp_path / "embedder"
    shutil.copytree(SHIPPED_MODEL, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    write_modules(model, [("Pooling", {"pooling_mode": "lasttoken"}), ("Normalize", {})])
    with up(model, tmp_path) as (said, url), httpx.Client(timeout=60) as client:
        assert "answer  the first one took" in said
        assert "v1/embeddings" in said
        (listed,) = client.get(f"{url}/models").json()["data"]
        assert listed["generates"] is False
        asked = {"model": listed["id"]}
        answer = client.post(f"{url}/embeddings", json=asked | {"input": "A fox."}).json()
        expected = oracle.embedding(SHIPPED_MODEL, "A fox.", "last")
        found = torch.tensor(answer["data"][0]["embedding"])
        assert torch.nn.functional.cosine_similarity(found, expected, dim=0) > 0.99
        refused = client.post(f"{url}/completions", json=asked | {"prompt": "A fox."})
        assert refused.status_code == 400
        assert "embeds texts (use '/v1/embeddings') and generates none" in refused.text


def test_a_directory_as_mistral_publishes_it_comes_up(tmp_path: Path) -> None:
    """Without tokenizer and template of Hugging Face's form, and with the weights twice."""
    model = tmp_path / "small"
    changes = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 2048}
    random_model("MistralForCausalLM", changes).save_pretrained(model)
    shutil.copy(model / "model.safetensors", model / "consolidated.safetensors")
    (model / "params.json").write_text("{}")
    (model / "tekken.json").write_text(json.dumps(tekken("v13", SPECIAL + NEW[:2])))
    parameters = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    look = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    asked = {"messages": [{"role": "user", "content": "Look."}], "tools": [look], "tool_choice": "required"}
    single = {"max_tokens": 200, "parallel_tool_calls": False}
    with up(model, tmp_path) as (_, url), httpx.Client(timeout=60) as client:
        answer = client.post(f"{url}/chat/completions", json={"model": "small", **single, **asked})
        assert answer.status_code == 200, answer.text
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"n": 7})
        count = client.post(url.removesuffix("/v1") + "/tokenize", json={"model": "small", **asked}).json()
        assert count["tokens"][:2] == [1, SPECIAL.index("[AVAILABLE_TOOLS]")]
