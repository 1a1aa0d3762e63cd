"""A trial at the loading of a model of transformers: does it give the same numbers with Quire's attention?

The model computes one prompt twice. The first time it uses its own attention and masks, and has all tokens at
once. The second time it computes as in service: attention is Quire's, the prompt comes in chunks and then
token by token, and each step has tokens of another sequence, too. Hidden states and logits (a classifier's
logits of labels) must be the same. They are not if the model's attention does something that Quire's is not
told of: another mask, several calls in a layer, a state of its own. Such a model is refused at its loading.
Without the trial it would give wrong tokens later.

The trial is short: only as many layers compute as are needed to have one of each kind.

In a type of lower precision, rounding alone may change a result, for example by the choice of another expert.
Two forms of transformers' own attention differ as much. So a model that fails in such a type is tried again
in float32.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gpu_worker.errors import ModelError, line_of
from gpu_worker.kernels.attention import AttentionSpec
from gpu_worker.models.classification import classification_head, own_scores, unpadded

SHORTEST, LONGEST = 48, 1024 + 48
"""Tokens of the prompt, at least and at most. Within these bounds it is longer than the longest window."""
STEPS = (0.5, 0.4)
"""Shares of the prompt that the first steps compute."""
ALONE = 3
"""Tokens that are computed one by one after these steps. One more step has the rest."""
BESIDE = 5
"""Tokens of the other sequence in each step."""
EXACT = 1e-3
"""Largest difference of a token's numbers in float32, as a share of their norm."""
ROUNDED = 0.1
"""The same in types of lower precision."""
QUANTIZED = 0.7
"""The same of the median token where products may round weights and activations. What has nothing to do with
the expected numbers is off by 1.4."""
STRAY = 0.1
"""Share of tokens that may differ by more where numbers are rounded: two experts may be equally good."""


class Runs(Protocol):
    """A model that is tried: see `models.transformers_model.TransformersModel`."""

    def run(self, tokens: Tensor, positions: Tensor, attend: Any) -> Tensor:
        """Hidden states [tokens, hidden_size], with `attend` as attention."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [rows, vocab_size], of hidden states [rows, hidden_size]."""

    def scores(self, hidden: Tensor) -> Tensor:
        """Logits of a classifier's labels, float32 [rows, num_labels]."""


@dataclass(frozen=True)
class Expected:
    """What the model's own code computes."""

    tokens: Tensor
    """int64 [tokens]."""
    hidden: Tensor
    """[tokens, hidden_size]: after the decoder."""
    logits: Tensor
    """float32 [`BESIDE`, vocab_size]: of the first tokens. Of a classifier [1, `BESIDE` * num_labels] in one
    row: a logit alone may be near 0, and then rounding changes much of it."""
    classifies: bool = False
    """The model is a classifier."""

    def same_of(self, runs: Runs) -> Tensor:
        """What `runs` computes in place of `logits`, from the same hidden states."""
        first = self.hidden[:BESIDE]
        with torch.inference_mode():
            return runs.scores(first).flatten()[None] if self.classifies else runs.logits(first)


def expect(model: Any, decoder: Any) -> Expected:
    """Run the own code of a model of transformers, of which `decoder` is a part, before its attention is
    replaced. Raises `ModelError`."""
    config = model.config.get_text_config()
    if (kind := getattr(config, "use_bidirectional_attention", None)) not in (None, False, "vision"):
        raise ModelError(f"use_bidirectional_attention is {kind!r}: tokens would see later ones")
    device = next(model.parameters()).device
    longest = min(getattr(config, "max_position_embeddings", None) or SHORTEST, LONGEST)
    window = getattr(config, "sliding_window", None) or 0
    length = min(longest, max(SHORTEST, *(each + SHORTEST for each in (window, *chunks_of(config).values()))))
    chance = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocab_size, (length,), generator=chance).to(device)
    if classifies := classification_head(model) is not None:
        tokens = unpadded(model, tokens)
    try:
        # Other forms leave out what they do not have, such as soft-caps.
        model.set_attn_implementation("eager")
        with torch.inference_mode(), few_layers(decoder, config):
            hidden = decoder(input_ids=tokens[None], use_cache=False)[0][0]
            if classifies:
                logits = own_scores(model, tokens[:BESIDE]).flatten()[None]
            else:
                logits = model(input_ids=tokens[None, :BESIDE], use_cache=False).logits[0].float()
    except Exception as error:
        raise ModelError(f"its own code does not run: {line_of(error)}") from error
    return Expected(tokens, hidden, logits, classifies)


def compare(runs: Runs, decoder: Any, config: Any, pages_of: Sequence[int], expected: Expected) -> None:
    """Run the model as in service. Raises `ModelError` if it computes something else than `expected`.

    `decoder`: the module of transformers that `runs` runs. `config`: its configuration. `pages_of`: number of
    the pages that each layer attends over.
    """
    found = _on_pages(runs, decoder, config, pages_of, expected.tokens)
    logits = expected.same_of(runs)
    exact = expected.hidden.dtype == torch.float32
    wrong = differs(found, expected.hidden, exact)
    if wrong and not exact:
        with _float32(decoder, config):
            found = _on_pages(runs, decoder, config, pages_of, expected.tokens)
            wrong = differs(found, _by_its_own_code(decoder, config, expected.tokens), exact=True)
    if wrong or differs(logits, expected.logits, exact):
        raise ModelError("on pages it computes something else than its own code does")


def check_products(
    runs: Runs, decoder: Any, config: Any, pages_of: Sequence[int], expected: Expected
) -> None:
    """Run the model with Quire's products, which may round. The parameters are those of `compare`.

    Raises `ModelError` if it computes something else than `expected`.
    """
    try:
        found = _on_pages(runs, decoder, config, pages_of, expected.tokens)
        logits = expected.same_of(runs)
    except Exception as error:
        raise ModelError(f"its products cannot be substituted: {line_of(error)}") from error
    for mine, own in ((found, expected.hidden), (logits, expected.logits)):
        off = (mine.float() - own.float()).norm(dim=1) / own.float().norm(dim=1).clamp(min=1e-6)
        if not off.median() <= QUANTIZED:
            raise ModelError("with Quire's products it computes something else than its own code does")


def _on_pages(runs: Runs, decoder: Any, config: Any, pages_of: Sequence[int], tokens: Tensor) -> Tensor:
    """Hidden states [tokens, hidden_size], computed as in service."""
    reverse = tokens.flip(0)
    found = list[Tensor]()
    pages, other = _Pages(pages_of), 0
    with torch.inference_mode(), few_layers(decoder, config):
        for begin, end in _steps(len(tokens)):
            beside = reverse[other : other + BESIDE]
            rows = ((begin, end), (other, other + len(beside)))
            other += len(beside)
            pages.begin(rows)
            positions = torch.cat([torch.arange(*row, device=tokens.device) for row in rows])
            hidden = runs.run(torch.cat((tokens[begin:end], beside)), positions, pages.attend)
            found.append(hidden[: end - begin])
    return torch.cat(found)


def _by_its_own_code(decoder: Any, config: Any, tokens: Tensor) -> Tensor:
    """Hidden states [tokens, hidden_size], with the model's own attention."""
    name = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        with torch.inference_mode(), few_layers(decoder, config):
            hidden: Tensor = decoder(input_ids=tokens[None], use_cache=False)[0][0]
            return hidden
    finally:
        decoder.set_attn_implementation(name)


def chunks_of(config: Any) -> dict[int, int]:
    """Chunk of the layers that attend within chunks, in positions, by the layer's number."""
    kinds = getattr(config, "layer_types", None) or ()
    return {
        layer: config.attention_chunk_size
        for layer, kind in enumerate(kinds)
        if kind == "chunked_attention" and config.attention_chunk_size
    }


def check_positions_of(config: Any, positions: int) -> None:
    """Raise `ModelError` for what no short trial can show: arithmetic that only long sequences meet.

    `positions`: longest sequence that will be served.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *rope.values()):  # one object, or one for each type of layer
        kind = one.get("rope_type") if isinstance(one, dict) else None
        original = config.max_position_embeddings
        if kind == "longrope":
            original = one.get("original_max_position_embeddings") or original
        if kind in ("longrope", "dynamic") and positions > original:
            # The longest sequence of a step decides on the angles of all others.
            raise _shorter(f"rope type {kind!r} is not supported beyond the original context", original)


def _shorter(what: str, positions: int) -> ModelError:
    return ModelError(f"{what} (QUIRE_MAX_MODEL_LEN={positions} serves it)")


@contextmanager
def few_layers(decoder: Any, config: Any) -> Iterator[None]:
    """Within, the decoder has only its first layers, among which there is one of each kind."""
    layers = layers_of(decoder, config)
    if layers is None:
        yield
        return
    needed = number_tried(layers, config)
    whole = list(layers)
    del layers[needed:]
    try:
        yield
    finally:
        layers.extend(whole[needed:])


def number_tried(layers: torch.nn.ModuleList, config: Any) -> int:
    """Number of the first layers among which there is one of each kind."""
    kinds = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    described = [
        (kind, *(type(part) for part in layer.modules())) for kind, layer in zip(kinds, layers, strict=False)
    ]
    return 1 + max(described.index(one) for one in described)


def layers_of(decoder: Any, config: Any) -> torch.nn.ModuleList | None:
    """The decoder's list of layers; None if it has no such list."""
    lists = (one for one in decoder.modules() if isinstance(one, torch.nn.ModuleList))
    return next((one for one in lists if len(one) == config.num_hidden_layers), None)


@contextmanager
def _float32(decoder: Any, config: Any) -> Iterator[None]:
    """Within, the decoder computes in float32. The weights of a layer are widened only while it computes, and
    those of embeddings never: their results are."""
    kept = dict[torch.nn.Parameter, Tensor]()

    def widen(module: Any, *_: Any) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for each in module.parameters():
                kept[each] = each.data
                each.data = each.data.float()

    def restore(module: Any, *_: Any) -> None:
        for each in module.parameters():
            each.data = kept.pop(each)

    layers = layers_of(decoder, config) or [decoder]
    within = {part for layer in layers for part in layer.modules()}
    rest = torch.nn.ParameterList()
    hooks = []
    for layer in layers:
        hooks += [layer.register_forward_pre_hook(widen), layer.register_forward_hook(restore)]
    for part in decoder.modules():
        if isinstance(part, torch.nn.Embedding):
            hooks.append(part.register_forward_hook(lambda _, __, out: out.float()))
        elif part not in within:
            rest.extend(part.parameters(recurse=False))
    widen(rest)
    try:
        yield
    finally:
        restore(rest)
        for hook in hooks:
            hook.remove()


@dataclass
class _Pages:
    """Keys and values of two sequences, and attention over them in plain PyTorch."""

    pages_of: Sequence[int]
    """Number of the pages that each layer attends over."""
    rows: Sequence[tuple[int, int]] = ()
    """Positions of each sequence's tokens in the step: the first, and one past the last."""
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Keys and values [positions, kv_heads, head_dim] by pages and sequence."""
    attended: set[int] = field(default_factory=set)
    """Layers that have attended in this step."""

    def begin(self, rows: Sequence[tuple[int, int]]) -> None:
        self.rows, self.attended = rows, set()

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        spec: AttentionSpec,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if layer in self.attended:
            raise ModelError("a layer of it attends more than once")
        number = self.pages_of[layer]
        writes = number not in {self.pages_of[each] for each in self.attended}
        self.attended.add(layer)
        out, start = list[Tensor](), 0
        for sequence, (begin, end) in enumerate(self.rows):
            now = slice(start, start + end - begin)
            start = now.stop
            keys, values = self.kept.get((number, sequence), (key[:0], value[:0]))
            if writes:
                keys, values = torch.cat((keys, key[now])), torch.cat((values, value[now]))
                self.kept[number, sequence] = keys, values
            out.append(_attention(query[now], keys, values, begin, spec, sinks))
        return torch.cat(out).flatten(1)


def _attention(
    query: Tensor, keys: Tensor, values: Tensor, begin: int, spec: AttentionSpec, sinks: Tensor | None
) -> Tensor:
    """[tokens, heads, head_dim]; the first token's position is `begin`. `sinks`: logits of learned sinks."""
    places = torch.arange(len(keys), device=keys.device)
    asking = begin + torch.arange(len(query), device=keys.device)[:, None]
    seen = places <= asking
    if spec.window:
        seen &= places > asking - spec.window
    if spec.chunk:
        seen &= places >= asking // spec.chunk * spec.chunk
    groups = query.shape[1] // keys.shape[1]
    scale = spec.scale or query.shape[-1] ** -0.5
    query_heads = query.transpose(0, 1).float()
    key_heads, value_heads = (
        one.transpose(0, 1).float().repeat_interleave(groups, 0) for one in (keys, values)
    )
    scores = query_heads @ key_heads.transpose(1, 2) * scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, len(query), 1)), -1)
    out = scores.softmax(-1)[..., : len(keys)] @ value_heads
    return out.transpose(0, 1).to(query.dtype)


def _steps(length: int) -> Iterator[tuple[int, int]]:
    begin = 0
    for share in STEPS:
        end = begin + int(share * length)
        yield begin, end
        begin = end
    for position in range(begin, min(begin + ALONE, length - 1)):
        yield position, position + 1
        begin = position + 1
    yield begin, length


def differs(found: Tensor, expected: Tensor, exact: bool) -> bool:
    """Whether rows [rows, numbers] differ by more than rounding explains. `exact`: in float32."""
    found, expected = found.float(), expected.float()
    off = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-6)
    if exact:
        return not bool((off <= EXACT).all())
    return not bool((off <= ROUNDED).float().mean() >= 1 - STRAY)  # what is not a number differs
