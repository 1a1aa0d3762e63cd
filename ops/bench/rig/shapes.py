"""Models with the shapes of well-known models and random weights: speed depends on the shape alone.

`python -m ops.bench.rig.shapes 135m DIR` writes a model that every engine can load: config.json, weights in
bfloat16, and a tokenizer of the whole vocabulary. The same seed writes the same bytes.

The tokenizer is byte-level BPE. Its tokens are special tokens, the 256 bytes, all pairs of letters and
digits, then triples of them until the vocabulary is full. The head's rows of special tokens and bytes are
zero. So a greedy answer has only letters and digits, and its text is complete after every token.
"""

import argparse
import itertools
import json
import os
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from ops.tiny_model.training.tokenizer import SPECIAL_TOKENS, save_tokenizer

DEVIATION = 0.02
"""Standard deviation of all weights. It makes logits of about 1, far below the largest bfloat16."""
MAX_LENGTH = 2048
"""Tokens of the longest sequence that a model takes."""
BYTES = 256
"""Tokens of single bytes."""


@dataclass(frozen=True)
class Shape:
    """The shape of a Llama model."""

    hidden: int
    """Numbers of a hidden state."""
    layers: int
    """Decoder layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads."""
    intermediate: int
    """Inner size of an MLP."""
    vocabulary: int
    """Tokens of the vocabulary."""
    tied: bool
    """Whether the head's weights are the embedding's."""

    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.hidden // self.heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": MAX_LENGTH,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "bos_token_id": SPECIAL_TOKENS.index("<|begin|>"),
            "eos_token_id": SPECIAL_TOKENS.index("<|end|>"),
            "pad_token_id": SPECIAL_TOKENS.index("<|pad|>"),
            "dtype": "bfloat16",
        }


SHAPES = {
    "135m": Shape(576, 30, 9, 3, 1536, 49152, tied=True),
    "1.1b": Shape(2048, 22, 32, 4, 5632, 32000, tied=False),
    "3b": Shape(3072, 28, 24, 8, 8192, 128256, tied=True),
    "8b": Shape(4096, 32, 32, 8, 14336, 128256, tied=False),
}


def cache_folder() -> Path:
    """The folder of benchmarks in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire" / "bench"


def made(name: str, seed: int = 0, folder: Path | None = None) -> Path:
    """The directory of a model of shape `SHAPES[name]` in `folder` (default: the user's cache).

    The model is written first if it is not there.
    """
    directory = (folder or cache_folder()) / (name if seed == 0 else f"{name}-{seed}")
    if not (directory / "config.json").exists():
        write(SHAPES[name], directory, seed)
    return directory


def write(shape: Shape, directory: Path, seed: int = 0, device: str = "cpu") -> None:
    """Write the model's files. config.json comes last, so a directory with it has a complete model.

    `device`: device that draws the weights. Other kinds of device draw other weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer(shape.vocabulary), directory, MAX_LENGTH)
    weights = dict(_weights(shape, torch.Generator(device).manual_seed(seed)))
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(shape.config(), indent=2) + "\n")


def _weights(shape: Shape, chance: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    for name, sizes in tensors(shape):
        if len(sizes) == 1:
            yield name, torch.ones(sizes, dtype=torch.bfloat16)
            continue
        numbers = torch.randn(sizes, generator=chance, device=chance.device)
        rows = numbers.mul_(DEVIATION).bfloat16().cpu()
        if sizes[0] == shape.vocabulary:
            rows[: len(SPECIAL_TOKENS) + BYTES] = 0
        yield name, rows


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor. Weights of products are called `_proj.weight`."""
    hidden, keys = shape.hidden, shape.kv_heads * shape.hidden // shape.heads
    yield "model.embed_tokens.weight", (shape.vocabulary, hidden)
    for number in range(shape.layers):
        layer = f"model.layers.{number}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "self_attn.q_proj.weight", (hidden, hidden)
        yield layer + "self_attn.k_proj.weight", (keys, hidden)
        yield layer + "self_attn.v_proj.weight", (keys, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, hidden)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (shape.intermediate, hidden)
        yield layer + "mlp.up_proj.weight", (shape.intermediate, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, shape.intermediate)
    yield "model.norm.weight", (hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocabulary, hidden)


def tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer of `vocabulary` tokens with different texts. Raises `ValueError` if none is possible."""
    letters = string.ascii_letters + string.digits
    pairs = [one + other for one, other in itertools.product(letters, repeat=2)]
    merges = [(pair[0], pair[1]) for pair in pairs]
    merges += [(pair, letter) for pair, letter in itertools.product(pairs, letters)]
    single = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = merges[: vocabulary - len(single)]
    words = single + [one + other for one, other in merges]
    if len(words) != vocabulary:
        raise ValueError(f"a vocabulary has {len(single)} to {len(words)} tokens, not {vocabulary}")
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    made.add_special_tokens(list(SPECIAL_TOKENS))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(SHAPES[options.shape], options.directory, options.seed)


if __name__ == "__main__":
    main()
