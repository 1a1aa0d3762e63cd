"""Recurrent layers in plain PyTorch, token after token: what other back ends are tested against."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.recurrence import Decay, Filters, StateCache

EPSILON = 1e-6
"""Is added to the squared length of a query or key."""


class RecurrentStep:
    """See `StepRecurrence`."""

    _step: StepMetadata

    def convolve(self, inputs: Tensor, filters: Filters, cache: StateCache) -> Tensor:
        """See `StepRecurrence.convolve`."""
        out, wide = torch.empty_like(inputs, memory_format=torch.contiguous_format), inputs.float()

        def advance(latest: Tensor, tokens: Tensor) -> Tensor:
            seen = torch.cat((latest, wide[tokens, None]), dim=1)
            result = (seen * filters.weight).sum(1)
            if filters.bias is not None:
                result = result + filters.bias
            out[tokens] = (silu(result) if filters.silu else result).to(out.dtype)
            return seen[:, 1:]

        self._recur(cache.inputs, cache.block_size, advance)
        return out

    def delta_rule(self, qkv: Tensor, gates: Tensor, decay: Decay, cache: StateCache) -> Tensor:
        """See `StepRecurrence.delta_rule`."""
        shape = cache.shape
        assert cache.matrices is not None
        heads, size = shape.heads, shape.key_size
        values = heads * shape.value_size
        queries = (qkv.shape[1] - values) // 2
        wide = qkv.float()
        query, key = (
            _unit(each.view(len(each), -1, size)).repeat_interleave(heads // (queries // size), dim=1)
            for each in wide[:, : 2 * queries].chunk(2, dim=1)
        )
        query = query * size**-0.5
        value = wide[:, 2 * queries :].view(-1, heads, shape.value_size)
        update, forget = gates.chunk(2, dim=1)
        update = update.sigmoid()
        kept = (decay.rate * softplus(forget + decay.bias)).exp()
        out = qkv.new_empty(value.shape)

        def advance(state: Tensor, tokens: Tensor) -> Tensor:
            state = state * kept[tokens, :, None, None]
            k = key[tokens]
            change = (value[tokens] - torch.einsum("nhkv,nhk->nhv", state, k)) * update[tokens, :, None]
            state = state + k[..., None] * change[..., None, :]
            out[tokens] = torch.einsum("nhkv,nhk->nhv", state, query[tokens]).to(out.dtype)
            return state

        self._recur(cache.matrices, cache.block_size, advance)
        return out.flatten(1)

    def _recur(self, states: Tensor, block_size: int, advance: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Bring the states of all rows forward, and write them to blocks.

        `states`: of all blocks. `advance`: gives the states of some rows after one more token of each, from
        those before it and the places of the tokens in the step.
        """
        for part in _parts(self._step, block_size):
            state = states[part.read]
            state[part.first] = 0
            for token in range(part.count):
                state = advance(state, part.tokens + token)
            states[part.write] = state


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of some rows, as many of each, that lie in one block of each."""

    tokens: Tensor
    """int64 [rows]: place of the first one of each row in the step."""
    count: int
    first: Tensor
    """bool [rows]: the first token is that of a sequence."""
    read: Tensor
    """int64 [rows]: block with the state before the tokens; any block for the first ones of a sequence."""
    write: Tensor
    """int64 [rows]: block that the tokens lie in."""


def _parts(step: StepMetadata, block_size: int) -> Iterator[_Part]:
    """All tokens of a step: the decodes, then chunk after chunk, each cut where blocks end."""
    tables = step.block_tables.long()

    def part(rows: slice, tokens: Tensor, count: int, starts: Tensor) -> _Part:
        read, write = (
            tables[rows].gather(1, at[:, None] // block_size)[:, 0]
            for at in ((starts - 1).clamp(min=0), starts)
        )
        return _Part(tokens, count, starts == 0, read, write)

    device = tables.device
    if step.decodes:
        starts = step.contexts[: step.decodes].long() - 1
        yield part(slice(0, step.decodes), torch.arange(step.decodes, device=device), 1, starts)
    place = step.decodes
    for row in range(step.decodes, len(step.query_lengths)):
        end = step.context_lengths[row]
        at = end - step.query_lengths[row]
        while at < end:
            count = min(end, (at // block_size + 1) * block_size) - at
            where, start = (torch.tensor([number], device=device) for number in (place, at))
            yield part(slice(row, row + 1), where, count, start)
            place, at = place + count, at + count


def _unit(rows: Tensor) -> Tensor:
    """Rows of about length 1."""
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + EPSILON)
