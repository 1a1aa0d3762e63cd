"""Bidirectional encoders of transformers, such as BERT: each token of a text attends to all of them.

    step        a b c │ d e │ f g        whole texts, in one ragged batch: products and norms see all tokens
    attention   a b c   d e │ f g        each text alone; texts of one length that lie side by side at once

The modelling code of transformers runs unchanged. Where it calls a function for attention, that function is
ours. A model with an attention of its own, such as MPNet, computes texts of one length at a time instead.
Nothing is kept of a text, so there are no pages. A trial compares the model with its own code.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from gpu_worker.errors import ModelError
from gpu_worker.kernels.attention import Cache, StepAttention
from gpu_worker.kernels.kv_sizes import PageShape
from gpu_worker.models.config import Shape
from gpu_worker.models.sight import Seen
from gpu_worker.models.transformers_model import register
from gpu_worker.models.trial import EXACT
from gpu_worker.models.vision import Tower
from ops.model_directory.classifier import ARCHITECTURE as CLASSIFIER

BEYOND = 22
"""Tokens of the longest text of the trial beyond a window."""


@dataclass(frozen=True, slots=True)
class EncoderShape(Shape):
    """Sizes of an encoder."""

    @property
    def pages(self) -> tuple[PageShape, ...]:
        return ()

    @property
    def bidirectional(self) -> bool:
        return True


class Encoder:
    """See `models.causal_lm.CausalLM`, of which an encoder has the parts that pooling needs."""

    def __init__(self, model: Any, device: torch.device) -> None:
        """`model`: of transformers, on the CPU, a classification head in float32. The trial computes in
        float32. After it the model gets this `device`. Raises `ModelError`."""
        self.tower: Tower | None = None
        """An encoder has none."""
        self._classifies = type(model).__name__.endswith(CLASSIFIER)
        where = model.base_model_prefix
        self._model, self._inner = model, getattr(model, where) if self._classifies else model
        model.config.use_cache = False  # Gemma's layers are those of a decoder
        # ModernBERT has the key.
        self._reads_mean = self._classifies and getattr(model.config, "classifier_pooling", "cls") == "mean"
        self._takes_types = getattr(model.config, "type_vocab_size", 0) > 1
        self._lengths: Sequence[int] = ()
        texts = self._texts()
        with _in_float32(model, self._inner):
            expected = [self._own(*text) for text in texts]
        self._ragged = bool(model._supports_attention_backend)
        if self._ragged:
            name = f"quire-encoder-{id(self)}"
            register(name, self._attention)
            model.set_attn_implementation(name)
        if self._classifies:  # the head computes logits, from hidden states instead of tokens
            pooler = getattr(self._inner, "pooler", None)
            setattr(model, where, _Given(pooler, getattr(self._inner, "pooler_activation", None)))
            self._inner.pooler = None
        self._first, positions = _positions_of(self._inner)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.config = EncoderShape(
            architecture=type(model).__name__,
            vocab_size=model.config.vocab_size,
            hidden_size=getattr(model.config, "embedding_dim", model.config.hidden_size),
            num_layers=model.config.num_hidden_layers,
            max_position=positions,
            windows=(0,) * model.config.num_hidden_layers,
            dtype=self._inner.dtype,
            num_labels=model.config.num_labels if self._classifies else 0,
        )
        with _in_float32(model, self._inner):
            self._compare(texts, expected)
        for part in (self._inner, self._model):
            part.to(device=device)
        self.dtype, self.device = self._inner.dtype, device
        try:
            with torch.inference_mode():
                tokens = torch.zeros(2, dtype=torch.int64, device=device)
                self.encode(tokens, tokens, tokens, [2])
        except RuntimeError as error:
            kind = str(self.dtype).removeprefix("torch.")
            raise ModelError(f"its code cannot compute in {kind}, but in float32 (QUIRE_DTYPE)") from error

    def encode(self, tokens: Tensor, positions: Tensor, types: Tensor, lengths: Sequence[int]) -> Tensor:
        """Hidden states [tokens, hidden_size] of whole texts, one after the other.

        `tokens`, their `positions` and their token `types`: int64 [tokens]. `lengths`: tokens of each text.
        If the head reads the mean of a text, that is in place of the text's first hidden state.
        """
        hidden = self._states(tokens, positions, types, lengths)
        return self._with_means(hidden, lengths) if self._reads_mean else hidden

    def normed(self, hidden: Tensor) -> Tensor:
        return hidden  # encoders end with their norms

    def scores(self, hidden: Tensor) -> Tensor:
        """A classifier's logits of its labels, float32 [rows, num_labels], for hidden states of the first
        tokens of texts."""
        logits: Tensor = self._model(inputs_embeds=hidden.float()[:, None]).logits
        return logits

    def __call__(
        self, tokens: Tensor, step: StepAttention, caches: Sequence[Cache], seen: Seen | None = None
    ) -> Tensor:
        raise ModelError("an encoder has no pages: see `encode`")

    def logits(self, hidden: Tensor) -> Tensor:
        raise ModelError("an encoder generates nothing")

    def _states(self, tokens: Tensor, positions: Tensor, types: Tensor, lengths: Sequence[int]) -> Tensor:
        """Hidden states of all tokens; see `encode`."""
        positions = self._numbers(tokens, positions)
        if self._ragged:
            self._lengths = lengths
            return self._run(tokens[None], positions[None], types[None])[0]
        found = []
        for start, count, length in _runs(lengths):
            batch = slice(start, start + count * length)
            texts = (each[batch].view(count, length) for each in (tokens, positions, types))
            found.append(self._run(*texts).flatten(0, 1))
        return torch.cat(found)

    def _numbers(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The numbers of positions in the model's table.

        Where there is a row of padding, a padding token has it wherever it stands, and others are counted
        without it: a text may be spelled like one.
        """
        if not self._first:
            return positions
        row = self._first - 1
        padding = (tokens == row).long()
        begins = torch.arange(len(tokens), device=tokens.device) - positions
        so_far = padding.cumsum(0)
        before = so_far - (so_far - padding)[begins]
        return torch.where(padding > 0, row, positions - before + self._first)

    def _with_means(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """The hidden states, with each text's mean in place of its first one."""
        found = [
            torch.cat((text.mean(0, keepdim=True), text[1:])) for text in torch.split(hidden, list(lengths))
        ]
        return torch.cat(found)

    def _run(self, tokens: Tensor, positions: Tensor, types: Tensor) -> Tensor:
        """Hidden states [texts, tokens, hidden_size]; all arguments int64 [texts, tokens]."""
        given = {"token_type_ids": types} if self._takes_types else {}
        hidden: Tensor = self._inner(input_ids=tokens, position_ids=positions, **given)[0]
        return hidden

    def _attention(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """The function that transformers calls: [1, heads, tokens, head_dim] to [1, tokens, heads, head_dim].

        `sliding_window`: a token attends to tokens less than this far from it, on both sides.
        """
        found = []
        for start, count, length in _runs(self._lengths):
            batch = slice(start, start + count * length)
            mask = None
            if sliding_window is not None and length > sliding_window:
                places = torch.arange(length, device=query.device)
                mask = (places[:, None] - places).abs() < sliding_window
            queries, keys, values = (
                torch.unflatten(states[0, :, batch], 1, (count, length)).transpose(0, 1)
                for states in (query, key, value)
            )
            if (group := queries.shape[1] // keys.shape[1]) > 1:
                keys, values = (states.repeat_interleave(group, 1) for states in (keys, values))
            out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scaling)
            found.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(found)[None], None

    def _texts(self) -> list[tuple[Tensor, Tensor]]:
        """Tokens of random texts, and their types, int64 [tokens] each.

        If there are types, the second half has type 1. One token is the padding token, which some models give
        another position.
        """
        config, chance = self._model.config, torch.Generator().manual_seed(1)
        padding, texts = config.pad_token_id, []
        windows = (getattr(config, key, None) for key in ("local_attention", "sliding_window"))
        window = next(filter(None, windows), 128)  # ModernBERT and Gemma have windows
        for length in (1, window + BEYOND, 7, 7):
            length = min(length, _positions_of(self._inner)[1])
            tokens = torch.randint(config.vocab_size, (length,), generator=chance)
            if length > 1 and padding is not None and 0 <= padding < config.vocab_size:
                tokens[length // 3] = padding
            types = torch.arange(length) >= (length + 1) // 2
            texts.append((tokens, types.long() * int(self._takes_types)))
        return texts

    def _own(self, tokens: Tensor, types: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the model's own code computes: hidden states, and a classifier's logits [1, labels]."""
        self._model.set_attn_implementation("eager")
        given = {"input_ids": tokens[None]}
        if self._takes_types:
            given["token_type_ids"] = types[None]
        with torch.inference_mode():
            logits = self._model(**given).logits if self._classifies else None
            return self._inner(**given)[0][0], logits

    def _compare(
        self, texts: Sequence[tuple[Tensor, Tensor]], expected: Sequence[tuple[Tensor, Tensor | None]]
    ) -> None:
        """Raise `ModelError` unless the texts, in one step, become what is expected."""
        lengths = [len(tokens) for tokens, _ in texts]
        tokens, types = (torch.cat(each) for each in zip(*texts, strict=True))
        with torch.inference_mode():
            positions = torch.cat([torch.arange(length) for length in lengths])
            states = self._states(tokens, positions, types, lengths)
            read = self._with_means(states, lengths) if self._reads_mean else states
            for hidden, first, (own, logits) in zip(
                torch.split(states, lengths), torch.split(read, lengths), expected, strict=True
            ):
                same = _same(hidden, own)
                if same and logits is not None:
                    same = _same(self.scores(first[:1]), logits)
                if not same:
                    raise ModelError("it computes something else than its own code")


@contextmanager
def _in_float32(*models: Any) -> Iterator[None]:
    """Let models compute in float32. Their weights are widened one module after the other; of the table of
    tokens the rows that are read; other tables, which some models read as a whole, for the time."""
    own = dict[nn.Module, dict[nn.Parameter, Tensor]]()

    def widen(module: nn.Module, _: Any) -> None:
        own[module] = {weight: weight.data for weight in module.parameters(recurse=False)}
        for weight, data in own[module].items():
            weight.data = data.float()

    def narrow(module: nn.Module, *_: Any) -> None:
        for weight, data in own.pop(module).items():
            weight.data = data

    def widen_rows(_: nn.Module, __: Any, rows: Tensor) -> Tensor:
        return rows.float()

    hooks, tokens, tables = list[Any](), models[-1].get_input_embeddings(), list[nn.Module]()
    for module in {module for model in models for module in model.modules()}:
        if module is tokens:
            hooks.append(module.register_forward_hook(widen_rows))
        elif isinstance(module, nn.Embedding):
            widen(module, None)
            tables.append(module)
        elif any(True for _ in module.parameters(recurse=False)):
            hooks += [module.register_forward_pre_hook(widen), module.register_forward_hook(narrow)]
    try:
        yield
    finally:
        for table in tables:
            narrow(table)
        for hook in hooks:
            hook.remove()


class _Given(nn.Module):
    """Takes the place of the encoder under a head, and returns its inputs as hidden states."""

    def __init__(self, pooler: nn.Module | None, activation: nn.Module | None) -> None:
        """`pooler`: of the encoder; None if it has none. `activation`: as in ALBERT, whose pooler is a
        product, what follows it."""
        super().__init__()
        self.pooler, self.activation = pooler, activation

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        pooled = None
        if self.activation is not None and self.pooler is not None:
            pooled = self.activation(self.pooler(inputs_embeds[:, 0]))
        elif self.pooler is not None:
            pooled = self.pooler(inputs_embeds)
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooled)


def _positions_of(inner: Any) -> tuple[int, int]:
    """The number of a text's first position, and how many positions there are.

    RoBERTa and its relatives count from behind the padding token's position.
    """
    table = getattr(getattr(inner, "embeddings", None), "position_embeddings", None)
    if table is None:  # rotary embeddings
        return 0, int(inner.config.max_position_embeddings)
    first = 0 if table.padding_idx is None else table.padding_idx + 1
    return first, table.num_embeddings - first


def _runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Texts of one length that lie side by side: where they begin, how many they are, and their length."""
    start = 0
    for length, texts in groupby(lengths):
        count = sum(1 for _ in texts)
        yield start, count, length
        start += count * length


def _same(found: Tensor, expected: Tensor) -> bool:
    """Whether no row [rows, size] differs by more than a share of its norm."""
    return bool(((found - expected).norm(dim=1) <= EXACT * (1e-6 + expected.norm(dim=1))).all())
