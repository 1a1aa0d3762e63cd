"""From documents to batches of token ids."""

import itertools
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ops.tiny_model.training.corpus import Sort, documents
from ops.tiny_model.training.recipe import MAX_LENGTH, Recipe
from ops.tiny_model.training.tokenizer import render, train_tokenizer

TOKENIZER_SEED, TOKENIZER_DOCUMENTS = 11, 30_000


def make_tokenizer() -> Tokenizer:
    """Train the tokenizer on the text alone: special tokens are added by name, never learned."""
    texts = []
    for document in itertools.islice(documents(TOKENIZER_SEED), TOKENIZER_DOCUMENTS):
        texts += [document] if isinstance(document, str) else [message["content"] for message in document]
    return train_tokenizer(texts)


def sample(tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of some documents, for the statistics that the first weights are made from."""
    texts = [render(document) for document in itertools.islice(documents(TOKENIZER_SEED), 3000)]
    return [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]


def rows(tokenizer: Tokenizer, seed: int, length: int, sort: Sort) -> Iterator[Tensor]:
    """Documents one after another, cut into rows of `length` + 1 token ids."""
    stream = documents(seed, sort=sort)
    ids: list[int] = []
    while True:
        while len(ids) <= length:
            texts = [render(next(stream)) for _ in range(256)]
            for encoded in tokenizer.encode_batch(texts, add_special_tokens=False):
                ids += encoded.ids
        yield torch.tensor(ids[: length + 1])
        ids = ids[length:]


def batches(recipe: Recipe, tokenizer: Tokenizer, start: int) -> Iterator[Tensor]:
    """The batches from step `start` on, (rows, length + 1): of stories, then with small talk, then long."""
    # A resumed run draws other documents than it has seen, not the same ones again.
    seed = recipe.seed * 1000 + start
    mixed = rows(tokenizer, seed, recipe.length, "mixed")
    small = rows(tokenizer, seed, recipe.length, "small")
    long = rows(tokenizer, seed, MAX_LENGTH, "long")
    for step in range(start, recipe.steps):
        if step >= recipe.steps * (1 - recipe.long_share):
            yield torch.stack([next(long) for _ in range(recipe.batch * recipe.length // MAX_LENGTH)])
        else:
            talk = recipe.small_rows if step >= recipe.small_from else 0
            sources = [small] * talk + [mixed] * (recipe.batch - talk)
            yield torch.stack([next(source) for source in sources])
