"""From documents to batches of token ids."""

import itertools
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ops.tiny_model.corpus import documents
from ops.tiny_model.recipe import MAX_LENGTH, Recipe
from ops.tiny_model.tokenizer import render, train_tokenizer

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


def rows(tokenizer: Tokenizer, seed: int, length: int, long: bool) -> Iterator[Tensor]:
    """Documents one after another, cut into rows of `length` + 1 token ids."""
    stream = documents(seed, long=long)
    ids: list[int] = []
    while True:
        while len(ids) <= length:
            texts = [render(next(stream)) for _ in range(256)]
            for encoded in tokenizer.encode_batch(texts, add_special_tokens=False):
                ids += encoded.ids
        yield torch.tensor(ids[: length + 1])
        ids = ids[length:]


def batches(recipe: Recipe, tokenizer: Tokenizer, start: int) -> Iterator[Tensor]:
    """The batches from step `start` on: short rows, then long ones with as many tokens in all."""
    short_steps = round(recipe.steps * (1 - recipe.long_share))
    while True:
        long = start >= short_steps
        length = MAX_LENGTH if long else recipe.length
        # A resumed run draws other documents than it has seen, not the same ones again.
        source = rows(tokenizer, recipe.seed * 1000 + start, length, long)
        while (start >= short_steps) == long:
            yield torch.stack([next(source) for _ in range(recipe.batch * recipe.length // length)])
            start += 1
