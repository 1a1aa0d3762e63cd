"""guidellm: its benchmark of chats and of texts."""

import json
import os
import subprocess
import sys
from pathlib import Path

from checks import BASE_URL, KEY, MODEL, check, run

REQUESTS = 6


def benchmark(route):
    out = Path(f"{route.rpartition('/')[2]}.json").absolute()
    options = {
        "backend": f"kind=openai_http,target={BASE_URL.removesuffix('/v1')},model={MODEL},"
        f"request_format={route},api_key={KEY}",
        "profile": "kind=concurrent,streams=2",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "tokenizer": f"kind=hf_auto,model={os.environ['CLIENT_MODEL_FOLDER']}",
        "data": "kind=synthetic_text,prompt_tokens=24,output_tokens=8",
        "output": f"kind=json,path={out}",
    }
    command = [str(Path(sys.executable).parent / "guidellm"), "run", "--disable-console"]
    for name, value in options.items():
        command += [f"--{name}", value]
    subprocess.run(command, check=True)
    (found,) = json.loads(out.read_text())["benchmarks"]
    totals = found["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), totals
    assert found["metrics"]["output_token_count"]["successful"]["mean"] == 8


@check
def chats():
    benchmark("/v1/chat/completions")


@check
def texts():
    benchmark("/v1/completions")


run()
