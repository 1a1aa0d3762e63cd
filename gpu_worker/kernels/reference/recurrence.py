"""Recurrent layers in plain PyTorch, token after token: what other back ends are tested against."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.recurrence import DeltaRule, Filters, StateCache, StateSpace

EPSILON = 1e-6
"""Is added to the squared length of a query or key."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the delta rule, or a state space, reads of some rows' tokens, as many of each: [rows, tokens,
    heads, ...], float32."""

    query: Tensor
    """Of the length that the rule says; C of a state space."""
    key: Tensor
    """B of a state space."""
    value: Tensor
    forget: Tensor
    """g: the state is multiplied by exp(g) with each token. Of each row of a state, or one for all rows."""
    update: Tensor
    """b: how much of what the state lacks is added to it. Of a state space: how much of the value is."""

    def part(self, tokens: slice) -> "Tokens":
        """Some of the tokens of each row."""
        every = (self.query, self.key, self.value, self.forget, self.update)
        return Tokens(*(each[:, tokens] for each in every))


class RecurrentStep:
    """See `StepRecurrence`."""

    _step: StepMetadata

    @cached_property
    def _parts(self) -> dict[int, list["_Part"]]:
        """The step's parts by block size, the same in every layer."""
        return {}

    def convolve(self, inputs: Tensor, filters: Filters, cache: StateCache) -> Tensor:
        """See `StepRecurrence.convolve`."""
        out, wide = torch.empty_like(inputs, memory_format=torch.contiguous_format), inputs.float()
        taps = len(filters.weight)

        def advance(latest: Tensor, places: Tensor) -> Tensor:
            seen = torch.cat((latest, wide[places]), dim=1)
            result = (seen.unfold(1, taps, 1) * filters.weight.T).sum(-1)
            if filters.bias is not None:
                result = result + filters.bias
            out[places] = (silu(result) if filters.silu else result).to(out.dtype)
            return seen[:, places.shape[1] :]

        self._recur(cache.inputs, cache.block_size, advance)
        return out

    def delta_rule(self, qkv: Tensor, gates: Tensor, rule: DeltaRule, cache: StateCache) -> Tensor:
        """See `StepRecurrence.delta_rule`."""
        shape, decay = cache.shape, rule.decay
        assert cache.matrices is not None
        heads, size = shape.heads, shape.key_size
        values = heads * shape.value_size
        queries = (qkv.shape[1] - values) // 2
        wide, of_head = qkv.float(), torch.arange(heads, device=qkv.device)
        key_heads = queries // size
        of_head = of_head % key_heads if rule.tiled else of_head // (heads // key_heads)
        query, key = (
            _unit(each.view(len(each), -1, size))[:, of_head]
            for each in wide[:, : 2 * queries].chunk(2, dim=1)
        )
        query = query * size**-0.5
        value = wide[:, 2 * queries :].view(-1, heads, shape.value_size)
        update, forget = gates[:, :heads].sigmoid() * rule.update_scale, gates[:, heads:] + decay.bias
        forget, rate = forget.view(len(forget), heads, -1), decay.rate[:, None]
        forget = decay.bound * (-rate * forget).sigmoid() if decay.bound else rate * softplus(forget)
        every, out = (query, key, value, forget, update), qkv.new_empty(value.shape)

        def advance(state: Tensor, places: Tensor) -> Tensor:
            results, state = self.apply_delta_rule(state, Tokens(*(each[places] for each in every)))
            out[places] = results.to(out.dtype)
            return state

        self._recur(cache.matrices, cache.block_size, advance)
        return out.flatten(1)

    def apply_delta_rule(self, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Results [rows, tokens, heads, value_size] and the states after the tokens. `state`: [rows, heads,
        key_size, value_size], before them."""
        results = torch.empty_like(tokens.value)
        for token in range(tokens.value.shape[1]):
            key, state = tokens.key[:, token], state * tokens.forget[:, token, ..., None].exp()
            missing = tokens.value[:, token] - torch.einsum("nhkv,nhk->nhv", state, key)
            change = missing * tokens.update[:, token, :, None]
            state = state + key[..., None] * change[..., None, :]
            results[:, token] = torch.einsum("nhkv,nhk->nhv", state, tokens.query[:, token])
        return results, state

    def state_space(self, inputs: Tensor, steps: Tensor, space: StateSpace, cache: StateCache) -> Tensor:
        """See `StepRecurrence.state_space`."""
        shape = cache.shape
        assert cache.matrices is not None
        values = shape.heads * shape.value_size
        keys = (inputs.shape[1] - values) // 2
        value, key, query = torch.split(inputs.float(), [values, keys, keys], dim=1)
        value = value.view(len(value), -1, shape.value_size)
        of_head = torch.arange(shape.heads, device=inputs.device) // (shape.heads * shape.key_size // keys)
        query, key = (each.view(len(each), -1, shape.key_size) for each in (query, key))
        update = softplus(steps + space.decay.bias).clamp(space.shortest, space.longest)
        forget, out = (space.decay.rate * update)[..., None], inputs.new_empty(value.shape)

        def advance(state: Tensor, places: Tensor) -> Tensor:
            # Each head's B and C, of a whole step, would take much memory.
            read, written = query[places][:, :, of_head], key[places][:, :, of_head]
            tokens = Tokens(read, written, value[places], forget[places], update[places])
            results, state = self.apply_state_space(state, tokens)
            out[places] = (results + space.skip[:, None] * tokens.value).to(out.dtype)
            return state

        self._recur(cache.matrices, cache.block_size, advance)
        return out.flatten(1)

    def apply_state_space(self, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """As `apply_delta_rule`, of a state space: without what is skipped."""
        results = torch.empty_like(tokens.value)
        for token in range(tokens.value.shape[1]):
            change = tokens.value[:, token] * tokens.update[:, token, :, None]
            state = state * tokens.forget[:, token, ..., None].exp()
            state = state + tokens.key[:, token, ..., None] * change[..., None, :]
            results[:, token] = torch.einsum("nhkv,nhk->nhv", state, tokens.query[:, token])
        return results, state

    def _recur(self, states: Tensor, block_size: int, advance: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Bring the states of all rows forward, and write them to blocks.

        `states`: of all blocks. `advance`: gives the states of some rows after further tokens of each, from
        those before these and the places of the tokens in the step, int64 [rows, tokens].
        """
        state = states[:0]
        if block_size not in self._parts:
            self._parts[block_size] = list(_parts(self._step, block_size))
        for part in self._parts[block_size]:
            if not part.goes_on:
                state = states[part.read]
                state[part.first] = 0
            state = advance(state, part.places)
            if not part.drafted:
                states[part.write] = state


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of some rows, as many of each, that lie in one block of each."""

    places: Tensor
    """int64 [rows, tokens]: where they are in the step."""
    first: Tensor
    """bool [rows]: the first token is that of a sequence."""
    read: Tensor
    """int64 [rows]: block with the state before the tokens; any block for the first ones of a sequence."""
    write: Tensor
    """int64 [rows]: block that the tokens lie in."""
    goes_on: bool
    """The tokens follow those of the part before."""
    drafted: bool
    """The states stay as they are."""


def _parts(step: StepMetadata, block_size: int) -> Iterator[_Part]:
    """All tokens of a step: the decodes, then chunk after chunk, each cut where blocks end."""
    tables = step.block_tables.long()

    def part(
        rows: slice, places: Tensor, starts: Tensor, goes_on: bool = False, drafted: bool = False
    ) -> _Part:
        read, write = (
            tables[rows].gather(1, at[:, None] // block_size)[:, 0]
            for at in ((starts - 1).clamp(min=0), starts)
        )
        return _Part(places, starts == 0, read, write, goes_on, drafted)

    device = tables.device
    if step.decodes:
        starts = step.contexts[: step.decodes].long() - 1
        yield part(slice(0, step.decodes), torch.arange(step.decodes, device=device)[:, None], starts)
    place = step.decodes
    for row in range(step.decodes, len(step.query_lengths)):
        end = step.context_lengths[row]
        start = at = end - step.query_lengths[row]
        drafted = bool(step.drafted) and step.drafted[row]
        while at < end:
            count = min(end, (at // block_size + 1) * block_size) - at
            places = torch.arange(place, place + count, device=device)[None]
            starts = torch.full((1,), at, device=device)  # a tensor of a list would wait for a GPU
            yield part(slice(row, row + 1), places, starts, at > start, drafted)
            place, at = place + count, at + count


def _unit(rows: Tensor) -> Tensor:
    """Rows of about length 1."""
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + EPSILON)
