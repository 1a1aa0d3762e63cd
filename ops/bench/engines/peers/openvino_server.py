"""OpenVINO GenAI's continuous batching as a server (`token_server.py`).

    PYTHON -m ops.bench.engines.peers.openvino_server --model DIR --port P --threads N --dtype bfloat16

PYTHON is any that has the package `openvino-genai`. DIR is a model in OpenVINO's own format. Prefix caching
is on, as in Quire.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from ops.bench.engines.peers.token_server import STEP_TOKENS, Answer, server

PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}


class OpenVino:
    """See `Batch`."""

    def __init__(self, model: Path, threads: int, dtype: str) -> None:
        settings = openvino_genai.SchedulerConfig()
        settings.max_num_batched_tokens = STEP_TOKENS
        settings.enable_prefix_caching = True
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
            "KV_CACHE_PRECISION": PRECISIONS[dtype],
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), settings, "CPU", properties)
        self._requests: list[tuple[Any, Answer]] = []
        self._number = 0

    @property
    def running(self) -> int:
        return len(self._requests)

    def add(self, prompt: list[int], max_tokens: int, answer: Answer) -> None:
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens = max_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        self._number += 1
        tokens = openvino.Tensor(np.array([prompt], np.int64))
        self._requests.append((self._pipeline.add_request(self._number, tokens, settings), answer))

    def step(self) -> None:
        self._pipeline.step()
        self._requests = [(handle, answer) for handle, answer in self._requests if not _ended(handle, answer)]


def _ended(handle: Any, answer: Answer) -> bool:
    """Hand on what the last step made; whether it was the end."""
    while handle.can_read():
        for output in handle.read().values():
            for token in output.generated_ids:
                answer.put(token)
    if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
        return False
    answer.put(None)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", choices=PRECISIONS, required=True)
    options = parser.parse_args()
    batch = OpenVino(options.model, options.threads, options.dtype)
    server(batch, options.model.name, options.port).serve_forever()


if __name__ == "__main__":
    main()
