"""Selections of sparse attention: which entries, in which order, and which pages."""

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import AttentionSpec, LayerCache, StepMetadata
from gpu_worker.kernels.kv_sizes import PageShape
from gpu_worker.kernels.reference import selection
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.kv import FORMATS
from gpu_worker.kernels.reference.selection import by_token, selected

TOP_K, SIZE = 5, 4
QUERY_LENGTHS, CONTEXTS = (1, 1, 6), (17, 3, 11)
TABLES = [[7, 2, 9, 0, 4], [5, 0, 0, 0, 0], [1, 8, 3, 0, 0]]


def metadata() -> StepMetadata:
    starts = [0, 1, 2, 8]
    positions = torch.tensor([16, 2, *range(5, 11)])
    row_of = torch.tensor([0, 1, *[2] * 6])
    tables = torch.tensor(TABLES, dtype=torch.int32)
    entries = tables[row_of, positions // SIZE].long() * SIZE + positions % SIZE
    return StepMetadata(
        2,
        QUERY_LENGTHS,
        CONTEXTS,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(CONTEXTS, dtype=torch.int32),
        tables,
        positions,
        entries,
    )


def pages(kv: str, size: int, seed: int) -> LayerCache:
    """Pages of random rows. Every entry has one, also those that belong to no sequence."""
    cache = FORMATS[kv](torch.float32).allocate(
        PageShape(1, size, size, shared=True), 10, SIZE, lambda shape, dtype: torch.zeros(shape, dtype=dtype)
    )
    drawn = torch.randn(40, 1, size, generator=torch.Generator().manual_seed(seed))
    every = torch.arange(40)
    cache.format.store(cache, (every // SIZE, slice(None), every % SIZE), drawn)
    return cache


def rows_of(cache: LayerCache, row: int) -> Tensor:
    """[context, size]: the rows of a sequence, from its first token on."""
    places = torch.arange(CONTEXTS[row])
    blocks = torch.tensor(TABLES[row])[places // SIZE]
    return cache.format.load(cache, (blocks, slice(None), places % SIZE), torch.float32)[0][:, 0]


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("piece", [1, selection.PIECE])
def test_attention_sees_what_scores_best(monkeypatch: pytest.MonkeyPatch, kv: str, piece: int) -> None:
    """As softmax over the five best tokens of each context, one token at a time."""
    monkeypatch.setattr(selection, "PIECE", piece)
    chance = torch.Generator().manual_seed(3)
    index_query, query = (torch.randn(8, 3, size, generator=chance) for size in (6, 10))
    weights = torch.randn(8, 3, generator=chance)
    index, cache = pages(kv, 6, 1), pages(kv, 10, 2)
    step = ReferenceStep(metadata())
    step.select(index_query, weights, index, TOP_K)
    found = step.attend_selected(query, cache, AttentionSpec(scale=0.3)).view(8, 3, 10)
    tokens = [(0, 17), (1, 3), *((2, seen) for seen in range(6, 12))]
    for token, (row, seen) in enumerate(tokens):
        keys, values = rows_of(index, row)[:seen], rows_of(cache, row)[:seen]
        scores = (index_query[token] @ keys.T).relu().T @ weights[token]
        best = scores.topk(min(TOP_K, seen)).indices
        weighed = (0.3 * query[token] @ values[best].T).softmax(-1) @ values[best]
        torch.testing.assert_close(found[token], weighed, atol=1e-5, rtol=1e-5)


def test_short_contexts_are_seen_whole() -> None:
    """No index score is computed: index keys are not even looked at."""
    cache, query = pages("auto", 10, 2), torch.randn(8, 3, 10)
    step, plain = ReferenceStep(metadata()), ReferenceStep(metadata())
    step.select(torch.randn(8, 3, 6), torch.randn(8, 3), pages("auto", 6, 1), max(CONTEXTS))
    expected = plain.attend(query, cache)
    assert step.attend_selected(query, cache, AttentionSpec()).equal(expected)


def test_a_selection_is_ascending_and_never_ahead() -> None:
    query, keys = torch.randn(7, 2, 4), torch.randn(9, 4)
    positions = torch.arange(2, 9)
    found = selected(query, torch.randn(7, 2), keys, positions, 4)
    assert (found.diff() >= 0).all()
    for row, position in zip(found.tolist(), positions.tolist(), strict=True):
        assert len(set(row[: position + 1])) == min(4, position + 1)
        assert max(row[: position + 1]) <= position
    assert found[0].tolist() == [0, 1, 2, 8]


def test_numbers_that_are_none_stay_within_the_context() -> None:
    """A sequence that fails must not read where others are."""
    query = torch.full((3, 2, 4), torch.nan)
    found = selected(query, torch.ones(3, 2), torch.randn(9, 4), torch.arange(6, 9), 4)
    assert found.min() >= 0
    assert (found[:, :4] <= torch.arange(6, 9)[:, None]).all()


@pytest.mark.parametrize("kv", FORMATS)
def test_pages_by_token_are_the_same_memory(kv: str) -> None:
    cache = pages(kv, 10, 4)
    single = by_token(cache)
    assert (single.block_size, single.keys.data_ptr()) == (1, cache.keys.data_ptr())
    entries = torch.tensor([13, 0, 39])
    whole = cache.format.load(cache, (entries // SIZE, slice(None), entries % SIZE), torch.float32)[0]
    one = cache.format.load(single, (entries, slice(None), entries * 0), torch.float32)[0]
    assert one.equal(whole)
