"""Any other causal LM of transformers, through its attention interface, on the same paged cache.

The modelling code of transformers runs unchanged. It calls a function for attention, with queries and keys
already rotated. That function is ours, and gets a step's ragged batch as a batch of one sequence. Everything
else in the model must treat each token by itself: a recurrent state (Mamba) or linear biases (ALiBi) would
give wrong results. A trial when the model is loaded refuses such models (`trial.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.errors import ModelError, line_of
from gpu_worker.kernels.attention import AttentionSpec, Cache, LayerCache, Rotary, StepAttention
from gpu_worker.kernels.kv_sizes import PageShape
from gpu_worker.models.classification import classification_head, token_scores
from gpu_worker.models.config import Shape
from gpu_worker.models.rope import check_positions
from gpu_worker.models.sight import Seen
from gpu_worker.models.trial import check_positions_of, check_products, chunks_of, compare, expect
from gpu_worker.models.vision import Tower

Attend = Callable[[int, Tensor, Tensor, Tensor, AttentionSpec, Tensor | None], Tensor]
"""Attention of one layer: number of the layer, queries [tokens, heads, head_dim], keys [tokens, kv_heads,
head_dim], values [tokens, kv_heads, v_head_dim], spec, logits of learned sinks [heads]; to [tokens, heads *
v_head_dim]."""

_HARMLESS = frozenset(
    {"dropout", "is_causal", "position_ids", "use_cache", "cache_position", "output_attentions"}
)
"""Arguments that transformers passes to attention and that are ignored here."""


@dataclass(frozen=True, slots=True)
class LayerShapes(Shape):
    """Sizes of a model whose layers may differ, as those of Gemma 4 do."""

    pages: tuple[PageShape, ...] = field()
    pages_of: tuple[int, ...]
    """Number of the pages that each layer attends over."""


class TransformersModel:
    """See `models.causal_lm.CausalLM`."""

    def __init__(self, model: Any, positions: int, score_tokens: tuple[int, ...] = ()) -> None:
        """`positions`: longest sequence; 0 = the model's own limit. `score_tokens`: as in `Shape`. Raises
        `ModelError`."""
        where = decoder_name(model)
        self.tower: Tower | None = None
        """Sees images; None: it has not been loaded."""
        self._score = classification_head(model)
        self._model, self._inner = model, getattr(model, where)
        config = model.config.get_text_config()
        expected = expect(model, self._inner)
        self.dtype: torch.dtype = model.dtype
        self._attend: Attend = _no_step
        name = f"quire-{id(self)}"
        register(name, self._attention)
        model.set_attn_implementation(name)
        # The model's own code computes logits, from hidden states instead of tokens.
        setattr(model, where, _PassThrough(self._inner))
        self._chunks = chunks_of(config)
        self._counts_tokens = bool(getattr(config, "attn_temperature_tuning", False))
        labels = int(bool(score_tokens)) if self._score is None else self._score.out_features
        self.config = replace(_shape(self, model.config), num_labels=labels, score_tokens=score_tokens)
        positions = positions or self.config.max_position
        check_positions_of(config, positions)
        self._tried = self._inner, config, self.config.pages_of, expected
        compare(self, *self._tried)
        sizes = {pages.key_size for pages in self.config.pages}
        check_positions(positions, max(sizes))
        ones = torch.ones(positions * max(sizes) // 2, device=model.device)
        tables = ones, torch.zeros_like(ones)
        self._unrotated = {
            size: Rotary(*(table[: positions * size // 2].view(positions, -1) for table in tables))
            for size in sizes
        }

    def check_products(self) -> None:
        """Raise `ModelError` if the model computes something else since its products were substituted."""
        check_products(self, *self._tried)
        del self._tried

    def __call__(
        self, tokens: Tensor, step: StepAttention, caches: Sequence[Cache], seen: Seen | None = None
    ) -> Tensor:
        written, pages = set[int](), [cache for cache in caches if isinstance(cache, LayerCache)]

        def attend(
            layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, sinks: Tensor | None
        ) -> Tensor:
            number, kept = self.config.pages_of[layer], value.shape[2]
            size = self.config.pages[number].key_size
            spec = replace(spec, scale=spec.scale or query.shape[2] ** -0.5)
            query, key, value = (pad(each, (0, size - each.shape[2])) for each in (query, key, value))
            if number not in written:
                written.add(number)
                qkv = torch.cat((query, key, value), dim=1).flatten(1)
                query = step.rotate_and_write(qkv, self._unrotated[size], pages[number])
            out = step.attend(query.contiguous(), pages[number], spec, None, sinks)
            return out if kept == size else out.view(len(out), -1, size)[..., :kept].flatten(1)

        return self.run(tokens, step.positions, attend, seen)

    def normed(self, hidden: Tensor) -> Tensor:
        return hidden  # transformers' decoders end with their norms

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._model(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits.float()

    def scores(self, hidden: Tensor) -> Tensor:
        if self._score is None:
            return token_scores(self.logits(hidden), self.config.score_tokens)
        return torch.nn.functional.linear(hidden.float(), self._score.weight.float())

    def run(self, tokens: Tensor, positions: Tensor, attend: Attend, seen: Seen | None = None) -> Tensor:
        """Hidden states [tokens, hidden_size], with `attend` as attention. `seen`: see `CausalLM`."""
        self._attend = attend
        given: dict[str, Any] = {}
        if self._counts_tokens:
            given = {"past_key_values": _Positions(positions), "attention_mask": defaultdict(lambda: None)}
        ids = tokens[None].long()
        given |= {"input_ids": ids} if seen is None else self._embedded(ids, seen)
        out = self._inner(position_ids=positions[None], use_cache=False, **given)
        hidden: Tensor = out[0][0]
        return hidden

    def _embedded(self, ids: Tensor, seen: Seen) -> dict[str, Tensor]:
        """Embeddings of the step, [1, tokens, hidden_size], with what is seen; and those of each layer, if
        the model has such: there a token that sees something is padding."""
        ids = ids.clone()
        ids[0, seen.tokens] = self._model.config.get_text_config().pad_token_id or 0
        embedded = self._inner.get_input_embeddings()(ids)
        given = {}
        if getattr(self._inner, "hidden_size_per_layer_input", 0):
            given["per_layer_inputs"] = self._inner.get_per_layer_inputs(ids, embedded)
        seen.put(embedded[0])
        return given | {"inputs_embeds": embedded}

    def _attention(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **given: Any
    ) -> tuple[Tensor, None]:
        """The function that transformers calls: [1, heads, tokens, head_dim] to [1, tokens, heads,
        head_dim]."""
        window, softcap = given.pop("sliding_window", None), given.pop("softcap", None)
        scale, sinks = given.pop("scaling", None), given.pop("s_aux", None)
        unknown = [name for name, value in given.items() if value is not None and name not in _HARMLESS]
        if attention_mask is not None or unknown:
            what = unknown[0] if unknown else "a mask of its own"
            raise ModelError(f"its attention needs {what}, which is not supported")
        queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
        chunk = self._chunks.get(module.layer_idx, 0)
        spec = AttentionSpec(window or 0, softcap=softcap or 0.0, chunk=chunk, scale=scale)
        if sinks is not None:
            sinks = sinks.float().flatten()
        out = self._attend(module.layer_idx, queries, keys, values, spec, sinks)
        return out.view(1, query.shape[2], query.shape[1], -1), None


class _PassThrough(torch.nn.Module):
    """Takes the place of the decoder under a head, and returns its inputs as hidden states."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self._replaced = (decoder,)  # in a tuple it is no part of this module

    def __getattr__(self, name: str) -> Any:
        """Factors of logits, say, which some models keep there."""
        return getattr(self.__dict__["_replaced"][0], name)

    @property
    def decoder(self) -> "_PassThrough":
        """For models that call `decoder` of the base model, as OPT does."""
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> "_HiddenStates":
        return _HiddenStates(inputs_embeds)


class _HiddenStates:
    """What a decoder returns, with hidden states alone: caches, logits of routers and the like are None."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, number: int) -> Tensor | None:
        return self.last_hidden_state if number == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class _Positions:
    """Looks like a cache to Llama 4, which takes the tokens of a sequence to follow those in its cache.

    Its queries grow with their positions (`attn_temperature_tuning`), which it counts itself.
    """

    def __init__(self, positions: Tensor) -> None:
        self._before = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, layer: int = 0) -> Tensor:
        """What is to be added to a token's number in the step: int64 [tokens]."""
        return self._before

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values are kept in pages."""
        return keys, values


def decoder_name(model: Any) -> str:
    """Name of the decoder within a causal LM. Raises `ModelError` if there is none."""
    # Llama 4 has its decoder under another name than it says.
    where = next((one for one in (model.base_model_prefix, "model") if hasattr(model, one)), None)
    if where is None:
        raise ModelError("its decoder is not found")
    return str(where)


def _shape(model: TransformersModel, config: Any) -> LayerShapes:
    """Sizes from the arguments of attention in a trial. Layers that get the same tensors share pages.

    The trial runs one token alone, and beside a token of another sequence: its result must be the same.
    """
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, sinks: Tensor | None
    ) -> Tensor:
        kept[layer] = key, value
        windows[layer] = spec.window
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).flatten(1)

    if any("Indexer" in type(module).__name__ for module in model._inner.modules()):
        raise ModelError("its indexers select the tokens to attend to, which is not supported")
    windows: dict[int, int] = {}
    device = next(iter(model._inner.parameters())).device
    tokens, positions = torch.tensor([1, 2], device=device), torch.zeros(2, dtype=torch.int64, device=device)
    try:
        together = model.run(tokens, positions, attend)
        alone = model.run(tokens[1:], positions[1:], attend)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"it does not run on a ragged batch: {line_of(error)}") from error
    text = config.get_text_config()
    if sorted(kept) != list(range(text.num_hidden_layers)):
        raise ModelError("not every layer of it has attention through transformers' interface")
    if any(key.shape[1] != value.shape[1] for key, value in kept.values()):
        raise ModelError("its keys have other heads than its values")
    if not torch.allclose(together[1].float(), alone[0].float(), rtol=0.02, atol=0.02):
        raise ModelError("its tokens reach each other beside attention")
    # All of them are alive: what is at one place is one tensor.
    places = [(key.data_ptr(), value.data_ptr()) for _, (key, value) in sorted(kept.items())]
    own = [places.index(place) for place in dict.fromkeys(places)]
    return LayerShapes(
        architecture=type(model._model).__name__,
        vocab_size=text.vocab_size,
        hidden_size=together.shape[-1],
        num_layers=len(kept),
        max_position=getattr(text, "max_position_embeddings", 2048),
        windows=tuple(windows[layer] for layer in sorted(windows)),
        dtype=model.dtype,
        pages=tuple(_page_of(*kept[layer]) for layer in own),
        pages_of=tuple(own.index(places.index(place)) for place in places),
    )


def _page_of(key: Tensor, value: Tensor) -> PageShape:
    """Keys and values [tokens, heads, size] are filled up with zeros to one even size."""
    size = max(key.shape[2], value.shape[2])
    return PageShape(key.shape[1], size + size % 2, size + size % 2)


def register(name: str, attention: Callable[..., tuple[Tensor, None]]) -> None:
    """Register `attention` with transformers under `name`, without masks."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, lambda *_, **__: None)


def _no_step(
    layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, sinks: Tensor | None
) -> Tensor:
    raise ModelError("attention outside of a step")
