"""What is trained: the shapes of model, draft and predictor, and how long, how fast and from which seeds."""

from dataclasses import dataclass

from tokenizers import Tokenizer
from transformers import LlamaConfig

from ops.tiny_model.training.corpus import Sort
from ops.tiny_model.training.tokenizer import BEGIN, END, PAD, VOCAB_SIZE

MAX_LENGTH = 2048


@dataclass(frozen=True)
class Recipe:
    """One model: its shape and its training. Lengths are in tokens."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    steps: int
    seed: int
    batch: int = 8
    length: int = 256
    long_share: float = 0.12
    """The last part of the steps sees long chats, in rows of 2,048 tokens."""
    small_rows: int = 3
    """Rows of a batch that are small talk, from step `small_from` on. Before that, most of what there is
    to read are stories: from their names the model learns to copy."""
    small_from: int = 1200
    held_steps: int = 500
    """For so long the circuits that the first weights contain do not change."""
    rate: float = 0.001
    warm_steps: int = 60
    decay_share: float = 0.35


MODEL = Recipe(
    "model", hidden=256, layers=8, heads=4, kv_heads=2, intermediate=768, steps=2600, seed=20261121
)
DRAFT = Recipe(
    "draft",
    hidden=128,
    layers=2,
    heads=4,
    kv_heads=2,
    intermediate=384,
    steps=1100,
    seed=20261122,
    rate=0.0015,
    small_from=700,
)
PREDICTOR = Recipe(
    "mtp",
    hidden=256,
    layers=1,
    heads=4,
    kv_heads=2,
    intermediate=768,
    steps=600,
    seed=20261127,
    batch=4,
    long_share=0.0,
    small_rows=1,
    small_from=0,
    rate=0.002,
)
"""Its shape is that of the model's layers."""


@dataclass(frozen=True)
class Tuning:
    """A phase of the last part of training, in which the model learns to call functions. Lengths: tokens."""

    name: str
    steps: int
    seed: int
    warm_steps: int
    decay_share: float
    call_rows: int
    """Rows of a batch that are conversations with functions."""
    call_weight: float
    """Of their loss, over that of what is kept."""
    kept_rows: int
    """Rows of a batch that hold the model to what it knew."""
    kept: tuple[Sort, ...] = ("mixed", "small", "mixed", "long")
    """Sorts of their documents, in turn."""
    length: int = 256
    rate: float = 0.0006


CALLS = (
    Tuning(
        "calls",
        steps=200,
        seed=20261124,
        warm_steps=30,
        decay_share=1 / 200,
        call_rows=4,
        call_weight=1.5,
        kept_rows=4,
    ),
    Tuning(
        "settle",
        steps=400,
        seed=20261125,
        warm_steps=20,
        decay_share=1.0,
        call_rows=2,
        call_weight=0.5,
        kept_rows=6,
    ),
)


def config_of(recipe: Recipe, tokenizer: Tokenizer) -> LlamaConfig:
    """The Llama configuration of a recipe."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.hidden // recipe.heads,
        intermediate_size=recipe.intermediate,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
