"""`quire up` with models that generate nothing: it comes up, and says what can be asked."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.launcher.redis_server import free_port
from tests.support.deployment import ROOT, SHIPPED_MODEL
from tests.unit.gpu_worker.models.test_encoder import saved


@pytest.mark.parametrize(
    ("head", "endpoint"), [("Model", "v1/embeddings"), ("ForSequenceClassification", "v1/classify")]
)
def test_an_encoder_comes_up(tmp_path: Path, head: str, endpoint: str) -> None:
    model = tmp_path / "encoder"
    saved(model, "Bert", head, vocab_size=4096)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED_MODEL / name, model)
    command = [sys.executable, "-m", "ops.cli.main", "up", "--model", str(model), "--port", str(free_port())]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "QUIRE_DEVICE": "cpu", "QUIRE_THREADS": "1"}
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
        assert "answer  the first one took" in said
        assert endpoint in said
        assert "KV for" not in said
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
