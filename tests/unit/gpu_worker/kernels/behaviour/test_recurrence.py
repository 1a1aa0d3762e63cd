"""Recurrent layers on every back end: results, and what is left in blocks, equal plain sums over all
tokens."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.attention import StepAttention, StepMetadata
from gpu_worker.kernels.cpu.attention import Attention
from gpu_worker.kernels.cpu.layers import Multiply
from gpu_worker.kernels.kv_sizes import StateShape
from gpu_worker.kernels.recurrence import Decay, DeltaRule, Filters, StateCache, StateSpace
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.recurrence import ChunkedStep
from tests.support.native import TESTED, with_team
from tests.support.paged import make_step

pytestmark = pytest.mark.usefixtures("poisoned")

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
ROWS = ((1, 1), (1, 2), (1, 33), (5, 64), (20, 20), (9, 21), (40, 47), (130, 141))
"""Tokens and context of each row: texts begin, go on, and are computed whole."""
DRAFTED = (5, 64), (9, 21)
"""Of these: rows with drafts."""

Begin = Callable[[StepMetadata], StepAttention]


class Chunked(ReferenceStep, ChunkedStep):
    """As on GPUs."""

    apply_delta_rule = ChunkedStep.apply_delta_rule
    apply_state_space = ChunkedStep.apply_state_space


WAYS: dict[str, Begin] = {"reference": ReferenceStep, "in chunks": Chunked}


@pytest.fixture
def begin(request: pytest.FixtureRequest) -> Begin:
    return WAYS.get(request.param) or Attention(with_team(request.param, 2)).begin


everywhere = pytest.mark.parametrize("begin", [*WAYS, *TESTED], indirect=True)
"""Each case in all ways, one after the other, so that it is made once."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Rows of a step, and for each of them what its layer computes of all tokens of its text."""

    step: StepMetadata
    whole: list[slice]
    """Of each row: its text's tokens among those of all texts."""
    block_size: int

    def own(self, of_texts: Tensor) -> Tensor:
        """What is of the step's own tokens, of numbers of all tokens of all texts."""
        parts = zip(self.whole, self.step.query_lengths, strict=True)
        return torch.cat([of_texts[text][-count:] for text, count in parts])

    def fill(self, states: Tensor, after: list[Tensor]) -> None:
        """Put states before the step's tokens into blocks. `after`: those after each number of tokens, by
        row."""
        states.fill_(torch.nan)
        for row, (count, context) in enumerate(self._lengths()):
            if before := context - count:
                states[self.step.block_tables[row, (before - 1) // self.block_size]] = after[row][
                    before
                ].float()

    def check(self, states: Tensor, after: list[Tensor], tolerance: float) -> None:
        """The states after the step are in its blocks, and no other block has been written. With drafts they
        are as they were before."""
        written = set[int]()
        for row, (count, context) in enumerate(self._lengths()):
            if self.step.drafted[row]:
                before = context - count
                written.add(block := int(self.step.block_tables[row, (before - 1) // self.block_size]))
                assert states[block].equal(after[row][before].float())
                continue
            for position in range(max(context - count - 1, 0), context):
                if (position + 1) % self.block_size == 0 or position in (context - 1, context - count - 1):
                    block = int(self.step.block_tables[row, position // self.block_size])
                    written.add(block)
                    if position + 1 == context or (position + 1) % self.block_size == 0:
                        assert_close(
                            states[block].double(), after[row][position + 1], atol=tolerance, rtol=tolerance
                        )
        others = [block for block in range(len(states)) if block not in written]
        assert states[others].isnan().all()

    def _lengths(self) -> list[tuple[int, int]]:
        return list(zip(self.step.query_lengths, self.step.context_lengths, strict=True))


@lru_cache(maxsize=1)
def make(block_size: int, rows: tuple[tuple[int, int], ...] = ROWS) -> Texts:
    step = make_step(rows, block_size, torch.Generator().manual_seed(block_size))
    step = replace(step, drafted=tuple(row in DRAFTED for row in rows))
    bounds = [0, *torch.tensor([context for _, context in rows]).cumsum(0).tolist()]
    return Texts(step, [slice(first, end) for first, end in pairwise(bounds)], block_size)


def blocks_of(texts: Texts) -> int:
    tables = texts.step.block_tables
    return int(tables[tables < 1 << 30].max()) + 2


@everywhere
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 7, 16, 64])
@pytest.mark.parametrize(
    ("channels", "taps", "biased", "silu"), [(5, 3, True, False), (144, 4, False, True), (160, 2, True, True)]
)
def test_convolution(
    begin: Begin, channels: int, taps: int, biased: bool, silu: bool, block_size: int, dtype: torch.dtype
) -> None:
    texts, generator = make(block_size), torch.Generator().manual_seed(channels)
    wider = torch.randn(texts.whole[-1].stop, channels + 3, generator=generator).to(dtype)
    inputs, weight = wider[:, :channels], torch.randn(taps, channels, generator=generator)
    bias = torch.randn(channels, generator=generator) if biased else None
    results, after = torch.empty(len(wider), channels, dtype=torch.float64), []
    for text in texts.whole:
        padded = torch.cat((torch.zeros(taps - 1, channels).double(), inputs[text].double()))
        seen = padded.unfold(0, taps, 1)  # [tokens, channels, taps]
        results[text] = (seen * weight.double().T).sum(-1) + (0 if bias is None else bias.double())
        after.append(padded.unfold(0, taps - 1, 1).transpose(1, 2))
    if silu:
        results = results * results.sigmoid()
    states = torch.empty(blocks_of(texts), taps - 1, channels)
    texts.fill(states, after)
    cache = StateCache(StateShape(taps - 1, channels), block_size, states)
    own = torch.cat(
        [wider[text][-count:] for text, count in zip(texts.whole, texts.step.query_lengths, strict=True)]
    )
    out = begin(texts.step).convolve(own[:, :channels], Filters(weight, bias, silu), cache)
    assert out.dtype == dtype
    assert out.is_contiguous()
    assert_close(out.double(), texts.own(results), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    texts.check(states, after, 0)


@dataclass(frozen=True)
class Delta:
    """A layer's tokens, and what comes of them."""

    qkv: Tensor
    gates: Tensor
    rule: DeltaRule
    shape: StateShape
    results: Tensor
    after: list[Tensor]


@lru_cache(maxsize=1)
def delta(
    texts: Texts,
    key_heads: int,
    heads: int,
    key_size: int,
    value_size: int,
    dtype: torch.dtype,
    by_row: bool = False,
    update_scale: float = 1.0,
    bound: float = 0.0,
) -> Delta:
    generator, tokens = torch.Generator().manual_seed(heads), texts.whole[-1].stop
    queries, values = key_heads * key_size, heads * value_size
    qkv = torch.randn(tokens, 2 * queries + values, generator=generator).to(dtype)
    decays = heads * key_size if by_row else heads
    gates = torch.randn(tokens, heads + decays, generator=generator)
    rate, bias = -torch.rand(heads, generator=generator), torch.randn(decays, generator=generator)
    rate[0] *= 200  # forgets nearly all, or all, with a token
    bias[-1] -= 30  # forgets nearly nothing
    bias[decays // 2] += 30
    query, key, value = qkv.double().split([queries, queries, values], dim=1)
    query, key = (
        (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(heads // key_heads, 1)
        for each in (query.unflatten(1, (-1, key_size)), key.unflatten(1, (-1, key_size)))
    )
    value = value.unflatten(1, (heads, value_size))
    numbers, rates = (
        (gates[:, heads:].double() + bias.double()).view(tokens, heads, -1),
        rate.double()[:, None],
    )
    unbounded = rates * torch.nn.functional.softplus(numbers)
    forget = (bound * (-rates * numbers).sigmoid() if bound else unbounded).exp()
    update = update_scale * gates[:, :heads].double().sigmoid()
    results, after = torch.empty(tokens, heads, value_size, dtype=torch.float64), []
    for text in texts.whole:
        state = torch.zeros(heads, key_size, value_size, dtype=torch.float64)
        states = [state]
        for token in range(text.start, text.stop):
            state = state * forget[token, ..., None]
            missing = value[token] - (state * key[token][..., None]).sum(1)
            state = state + key[token][..., None] * (missing * update[token, :, None])[:, None]
            results[token] = (state * query[token][..., None]).sum(1) * key_size**-0.5
            states.append(state)
        after.append(torch.stack(states))
    shape = StateShape(3, qkv.shape[1], heads, key_size, value_size)
    rule = DeltaRule(Decay(rate, bias, bound), update_scale)
    return Delta(qkv, gates, rule, shape, results.flatten(1), after)


SIZES = [(1, 1, 1, 1), (2, 4, 21, 40), (1, 2, 64, 64), (2, 2, 16, 33)]
"""Heads of keys and of values, and the sizes of both."""
RULES = [(False, 1.0, 0.0), (True, 1.0, -5.0), (False, 2.0, -3.0), (True, 1.0, 0.0)]
"""Whether each number of a key is forgotten by itself, the scale of updates, and the bound."""
TWO_RULES_OF_EACH_SIZE = [
    (size, rule) for at, size in enumerate(SIZES) for place, rule in enumerate(RULES) if (at + place) % 4 < 2
]


@everywhere
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 7, 128])
@pytest.mark.parametrize(("sizes", "rule"), TWO_RULES_OF_EACH_SIZE)
def test_delta_rule(
    begin: Begin,
    sizes: tuple[int, int, int, int],
    block_size: int,
    dtype: torch.dtype,
    rule: tuple[bool, float, float],
) -> None:
    (key_heads, heads, key_size, value_size), (by_row, update_scale, bound) = sizes, rule
    texts = make(block_size)
    layer = delta(texts, key_heads, heads, key_size, value_size, dtype, by_row, update_scale, bound)
    matrices = torch.empty(blocks_of(texts), heads, key_size, value_size)
    texts.fill(matrices, layer.after)
    cache = StateCache(layer.shape, block_size, torch.empty(0), matrices)
    out = begin(texts.step).delta_rule(texts.own(layer.qkv), texts.own(layer.gates), layer.rule, cache)
    assert out.dtype == dtype
    assert_close(out.double(), texts.own(layer.results), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    texts.check(matrices, layer.after, 1e-5)


@everywhere
def test_heads_of_values_may_lie_apart(begin: Begin) -> None:
    """As in GGUF files: the same numbers in another order give the same results in that order."""
    texts, sizes = make(16), (2, 6, 8, 5)
    layer, order = delta(texts, *sizes, torch.float32), torch.arange(6).view(2, 3).T.flatten()

    def compute(qkv: Tensor, gates: Tensor, rule: DeltaRule) -> Tensor:
        matrices = torch.zeros(blocks_of(texts), *sizes[1:])
        cache = StateCache(layer.shape, 16, torch.empty(0), matrices)
        return begin(texts.step).delta_rule(qkv, gates, rule, cache).unflatten(1, (6, 5))

    qkv, gates = texts.own(layer.qkv), texts.own(layer.gates)
    moved = torch.cat((qkv[:, :32], qkv[:, 32:].unflatten(1, (6, 5))[:, order].flatten(1)), dim=1)
    decay = Decay(layer.rule.decay.rate[order], layer.rule.decay.bias[order])
    gates_moved = gates.unflatten(1, (2, 6))[:, :, order].flatten(1)
    apart = compute(moved, gates_moved, DeltaRule(decay, tiled=True))
    assert_close(apart, compute(qkv, gates, layer.rule)[:, order], atol=1e-6, rtol=1e-6)


@dataclass(frozen=True)
class Space:
    """A layer's tokens, and what comes of them."""

    inputs: Tensor
    steps: Tensor
    weights: StateSpace
    shape: StateShape
    results: Tensor
    after: list[Tensor]


@lru_cache(maxsize=1)
def space(texts: Texts, groups: int, heads: int, key_size: int, value_size: int, dtype: torch.dtype) -> Space:
    generator, tokens = torch.Generator().manual_seed(heads), texts.whole[-1].stop
    keys, values = groups * key_size, heads * value_size
    inputs = torch.randn(tokens, values + 2 * keys, generator=generator).to(dtype)
    steps = 2 * torch.randn(tokens, heads, generator=generator)
    rate, bias, skip = (torch.randn(heads, generator=generator) for _ in range(3))
    rate = -rate.exp()
    rate[0] *= 200  # forgets nearly all, or all, with a token
    value, key, query = inputs.double().split([values, keys, keys], dim=1)
    value = value.unflatten(1, (heads, value_size))
    key, query = (
        each.unflatten(1, (groups, key_size)).repeat_interleave(heads // groups, 1) for each in (key, query)
    )
    step = torch.nn.functional.softplus(steps.double() + bias.double()).clamp(0.2, 1.5)
    assert 0 < (step == 0.2).sum() < step.numel() / 2
    assert 0 < (step == 1.5).sum() < step.numel() / 2
    results, after = torch.empty(tokens, heads, value_size, dtype=torch.float64), []
    for text in texts.whole:
        state = torch.zeros(heads, key_size, value_size, dtype=torch.float64)
        states = [state]
        for token in range(text.start, text.stop):
            state = state * (rate.double() * step[token]).exp()[:, None, None]
            state = state + key[token][..., None] * (step[token, :, None] * value[token])[:, None]
            results[token] = (state * query[token][..., None]).sum(1) + skip.double()[:, None] * value[token]
            states.append(state)
        after.append(torch.stack(states))
    shape = StateShape(3, inputs.shape[1], heads, key_size, value_size)
    weights = StateSpace(Decay(rate, bias), skip, 0.2, 1.5)
    return Space(inputs, steps, weights, shape, results.flatten(1), after)


@everywhere
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 7, 128])
@pytest.mark.parametrize(
    ("groups", "heads", "key_size", "value_size"),
    [(1, 1, 1, 1), (2, 4, 21, 40), (1, 2, 64, 64), (2, 2, 16, 33)],
)
def test_state_space(
    begin: Begin,
    groups: int,
    heads: int,
    key_size: int,
    value_size: int,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    texts = make(block_size)
    layer = space(texts, groups, heads, key_size, value_size, dtype)
    matrices = torch.empty(blocks_of(texts), heads, key_size, value_size)
    texts.fill(matrices, layer.after)
    cache = StateCache(layer.shape, block_size, torch.empty(0), matrices)
    out = begin(texts.step).state_space(texts.own(layer.inputs), texts.own(layer.steps), layer.weights, cache)
    assert out.dtype == dtype
    expected = texts.own(layer.results)
    tolerance = TOLERANCES[dtype] * max(1.0, float(expected.abs().max()) / 8)
    assert_close(out.double(), expected, atol=tolerance, rtol=TOLERANCES[dtype])
    texts.check(matrices, layer.after, 2e-5)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("operation", ["delta rule", "delta rule by row", "state space"])
def test_a_token_has_the_same_bits_in_any_chunk(
    native: ctypes.CDLL, operation: str, dtype: torch.dtype
) -> None:
    texts = make(16, ((45, 45),))
    rule = delta(texts, 2, 4, 24, 40, dtype, operation == "delta rule by row")
    scan = space(texts, 2, 4, 24, 40, dtype)

    def compute(counts: list[int]) -> tuple[Tensor, Tensor]:
        matrices = torch.empty(blocks_of(texts), 4, 24, 40)
        cache, out, begun = StateCache(rule.shape, 16, torch.empty(0), matrices), list[Tensor](), 0
        for count in counts:
            end = begun + count
            step = replace(
                texts.step,
                query_lengths=(count,),
                context_lengths=(end,),
                query_starts=torch.tensor([0, count]).int(),
                contexts=torch.tensor([end]).int(),
            )
            rows = slice(begun, end)
            of_step = Attention(native).begin(step)
            if operation.startswith("delta rule"):
                out.append(of_step.delta_rule(rule.qkv[rows], rule.gates[rows], rule.rule, cache))
            else:
                out.append(of_step.state_space(scan.inputs[rows], scan.steps[rows], scan.weights, cache))
            begun = end
        return torch.cat(out), matrices[texts.step.block_tables[0, :3].long()]

    whole = compute([45])
    for counts in ([1] * 45, [16, 29], [7, 9, 1, 28]):
        assert all(map(torch.equal, compute(counts), whole)), counts


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ["none", "silu", "sigmoid"])
@pytest.mark.parametrize("size", [1, 16, 45])
def test_multiply(native: ctypes.CDLL, size: int, activation: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    both = torch.randn(9, 2 * size + 1, generator=generator).to(dtype)
    expected, found = both.clone(), both.clone()
    for multiply, rows in ((ReferenceKernels().multiply, expected), (Multiply(native), found)):
        multiply(rows[:, :size], rows[:, -size:], activation)
    assert expected[:, size:].equal(both[:, size:])
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    assert_close(found, expected, atol=tolerance, rtol=tolerance)
