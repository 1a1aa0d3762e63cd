"""Log likelihoods of continuations by transformers: `python -m tests.clients.likelihoods MODEL_FOLDER`.

Reads a JSON list of pairs of token ids, context and continuation. Writes a list of pairs: the log likelihood,
and whether greedy decoding gives the continuation.
"""

import json
import sys

import torch
from transformers import AutoModelForImageTextToText


@torch.inference_mode()
def main(folder: str) -> None:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for context, continuation in json.load(sys.stdin):
        logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1]
        due = torch.tensor(continuation)
        scores = logits.log_softmax(-1).gather(1, due[:, None])
        found.append((scores.sum().item(), bool((logits.argmax(-1) == due).all())))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
