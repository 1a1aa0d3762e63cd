"""Scores of texts: by the classification head of a model of transformers, or by tokens of any model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.errors import ModelError
from ops.model_directory.classifier import ARCHITECTURE


def classification_head(model: Any) -> nn.Linear | None:
    """The head of a classifier; None for a language model. Raises `ModelError` for a head of another kind."""
    if not type(model).__name__.endswith(ARCHITECTURE):
        return None
    head = getattr(model, "score", None)
    if type(head) is not nn.Linear or head.bias is not None:
        raise ModelError("it is no decoder with a linear classification head, and no known encoder")
    return head


def token_scores(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """float32 [rows, 1]: logits [rows, vocab_size] of the first token, less those of the second if there is
    one."""
    found = logits[:, list(tokens)]
    return found[:, :1] - found[:, 1:].sum(dim=1, keepdim=True)


def unpadded(model: Any, tokens: Tensor) -> Tensor:
    """The tokens without the padding token, which a classifier's own code passes over at the end."""
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        return tokens
    other = (config.pad_token_id + 1) % config.vocab_size
    return tokens.masked_fill(tokens == config.pad_token_id, other)


def own_scores(model: Any, tokens: Tensor) -> Tensor:
    """Logits of labels as the model's own code computes them, float32 [tokens, num_labels]: of the text up to
    each of `tokens`, int64 [tokens], none of which is the padding token."""
    texts = (tokens[None, : length + 1] for length in range(len(tokens)))
    return torch.cat([model(input_ids=text, use_cache=False).logits.float() for text in texts])
