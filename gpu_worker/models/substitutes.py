"""Quire's products and activations in a model of transformers.

A module keeps its place and its class, but its `forward` is a product of the back end, and its weights are
empty. So any weight format and quantization serves models of transformers, too.

Modules with code of their own, such as routers, keep their `forward`, and their weights become `Multiplied`.

On a CPU PyTorch's products depend on the number of rows, and its activations on whether a number is among the
last ones. With the back end's a token has the same bits whatever runs beside it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Expert, Linear, Mixture, Unary
from gpu_worker.kernels.reference.activations import ACTIVATIONS
from gpu_worker.kernels.reference.mixture import ReferenceMixture
from gpu_worker.models.classification import classification_head

_GATED = ("silu", "gelu", "gelu_tanh")
"""Activations of `Kernels.mixture`."""

_ROUTER = re.compile("Router|Gating")
"""In the names of routers' classes."""


def substitutable(model: Any) -> Iterator[tuple[str, Any]]:
    """Modules that can have Quire's products, by name: linear layers, and experts that lie stacked.

    Not among them are routers and classification heads, which are small and decide much, a head that shares
    its weights with the embeddings, and modules in another type than the model's.
    """
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    left = {id(classification_head(model))}
    left |= {id(head)} if tied else set[int]()
    routers = (part for part in model.modules() if _ROUTER.search(type(part).__name__))
    left |= {id(part) for router in routers for part in router.modules()}
    left |= {  # routers that are single linear layers lie beside experts
        id(part)
        for module in model.modules()
        if any(_is_experts(part) for part in module.children())
        for part in module.children()
    }
    for name, module in model.named_modules():
        known = _is_experts(module) or (type(module) is nn.Linear and id(module) not in left)
        if known and {each.dtype for each in module.parameters()} == {model.dtype}:
            yield name, module


def _is_experts(module: Any) -> bool:
    """Whether it has stacked matrices as transformers' `use_experts_implementation` names them."""
    unusual = (getattr(module, name, False) for name in ("has_bias", "has_post_expert_norm"))
    usual = hasattr(module, "_apply_gate") and not any(unusual)
    names = {name for name, _ in module.named_parameters()}
    return (usual or _takes_scaled(module)) and names == {up_name(module), "down_proj"}


def _takes_scaled(experts: Any) -> bool:
    """Whether its inputs, not its results, are multiplied by routing weights, as in Llama 4. The mixture
    around it gives each expert all tokens: tokens that have not selected the expert are zeros."""
    return type(experts).__name__ == "Llama4TextExperts"


def up_name(experts: Any) -> str:
    """Name of the stacked matrices that experts begin with."""
    return "gate_up_proj" if getattr(experts, "has_gate", True) else "up_proj"


def lies_transposed(experts: Any) -> bool:
    """Whether its stacked matrices are [experts, in, out] instead of [experts, out, in]."""
    return _takes_scaled(experts) or experts.is_transposed


class Multiplied(Tensor):
    """A weight [out, in] of a module with code of its own. What is multiplied with it, and rows that are
    looked up, are the back end's. For all else it is the tensor that it is made of."""

    _is_param = True
    """To PyTorch it is a parameter."""
    kernels: Kernels
    product: Linear | None
    """None: nothing has been multiplied with it."""
    wide: "Multiplied | None"
    """The same weight in float32. None: nobody has asked for it."""

    @staticmethod
    def of(weight: Tensor, kernels: Kernels, product: Linear | None = None) -> "Multiplied":
        multiplied = weight.as_subclass(Multiplied)
        multiplied.kernels, multiplied.product, multiplied.wide = kernels, product, None
        return multiplied

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if len(args) > 1 and isinstance(args[1], cls):
            if function is functional.linear:
                return _multiplied(*args, **given)
            if function is functional.embedding and args[1].product is not None:
                return args[1].product.rows(args[0].flatten()).view(*args[0].shape, -1)
        converts = function in (Tensor.type, Tensor.to) and any(
            each is torch.float32 for each in (*args[1:], *given.values())
        )
        with torch._C.DisableTorchFunctionSubclass():
            if (function is Tensor.float or converts) and isinstance(args[0], cls):
                return args[0]._widened()
            return function(*args, **given)

    def _widened(self) -> "Multiplied":
        """The same weight in float32."""
        if self.dtype == torch.float32:
            return self
        if self.wide is None:
            self.wide = Multiplied.of(self.as_subclass(Tensor).float(), self.kernels)
        return self.wide


def _multiplied(hidden: Tensor, weight: Multiplied, bias: Tensor | None = None) -> Tensor:
    if weight.product is None:
        weight.product = weight.kernels.linear(weight.as_subclass(Tensor), dtype=torch.float32)
    product = weight.product(hidden.reshape(-1, hidden.shape[-1]).contiguous()).to(hidden.dtype)
    result = product.view(*hidden.shape[:-1], product.shape[1])
    return result if bias is None else result.add_(bias)


def multiply_rest(modules: Iterable[nn.Module], kernels: Kernels) -> None:
    """Let products with other matrices in these modules be the back end's, so those of routers."""
    for module in modules:
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.dim() == 2 and weight.numel() and not isinstance(weight, Multiplied):
                setattr(module, name, Multiplied.of(weight.data, kernels))


def share_head(embedding: nn.Embedding, head: nn.Linear, kernels: Kernels) -> None:
    """Let `head`, which shares its weight [vocab_size, hidden_size] with `embedding`, be a product of the
    back end, and `embedding` look up the product's rows."""
    weight = head.weight.data
    product = kernels.linear(weight, dtype=torch.float32, keeps_rows=True)
    zeros = weight.new_zeros(()).expand(weight.shape)  # take no memory
    embedding.weight = head.weight = Multiplied.of(zeros, kernels, product)


def substitute_activations(modules: Iterable[nn.Module], kernels: Kernels) -> None:
    """Let activations among these modules be the back end's."""
    for module in modules:
        known = isinstance(module, nn.SiLU | nn.GELU | nn.ReLU) or type(module).__module__ == _ACTIVATIONS
        if known and (name := _activation(module)):
            module.forward = partial(_activated, kernels, name)


_ACTIVATIONS = "transformers.activations"
"""The module of most activations' classes."""


def _activated(kernels: Kernels, name: str, hidden: Tensor) -> Tensor:
    result = hidden.clone(memory_format=torch.contiguous_format)
    kernels.activate(result.view(-1, result.shape[-1]), name)
    return result


def substitute_linear(module: nn.Linear, weight: Tensor, kernels: Kernels, wide: bool = False) -> None:
    """Let `module` compute with `weight` [out, in]. `wide`: results are float32, as those of heads are."""
    bias = None if module.bias is None else module.bias.data.to(weight.device)
    product, size = kernels.linear(weight, bias, torch.float32 if wide else None), len(weight)

    def forward(hidden: Tensor) -> Tensor:
        return product(hidden.reshape(-1, hidden.shape[-1]).contiguous()).view(*hidden.shape[:-1], size)

    _replace(module, forward)


def substitute_experts(
    module: Any, around: Any, experts: Iterable[tuple[Tensor, Tensor]], kernels: Kernels
) -> None:
    """Let `module` compute with `experts`: of each the matrix it begins with, and down [size, inner].

    `around`: the module that `module` is a part of.
    """
    mixture: Mixture
    activation = _activation(getattr(module, "act_fn", None))
    if _takes_scaled(module):
        around.forward = partial(_scaled_inputs, around)
    if _has_usual_gate(module) and activation in _GATED:
        own = (Expert(up, down) for up, down in experts)
        mixture = kernels.mixture(own, module.num_experts, activation)
    else:
        gate = module._apply_gate if module.has_gate else module.act_fn
        mixture = ReferenceMixture(
            (_gated(kernels.linear(up), gate), kernels.linear(down)) for up, down in experts
        )

    def forward(hidden: Tensor, selected_experts: Tensor, routing_weights: Tensor) -> Tensor:
        rows = hidden.contiguous()
        return mixture(rows, routing_weights.float(), selected_experts).to(hidden.dtype)

    _replace(module, forward)


def _gated(product: Linear, gate: Unary) -> Unary:
    return lambda hidden: gate(product(hidden))


def _scaled_inputs(mixture: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """The forward pass of Llama 4's mixture, in which an expert gets only the tokens that have selected it.

    `mixture`: the module, whose experts are substituted. Returns what it returns: results [tokens,
    hidden_size], and router logits.
    """
    hidden = hidden_states.reshape(-1, mixture.hidden_dim)
    scores, logits = mixture.router(hidden)
    selected = logits.topk(mixture.top_k, dim=1).indices
    scaled = (hidden[:, None] * scores.gather(1, selected)[..., None]).flatten(0, 1)
    each = selected.flatten()[:, None]
    routed = mixture.experts(scaled, each, torch.ones_like(each, dtype=torch.float32))
    shared = mixture.shared_expert(hidden)
    return shared + routed.view(*selected.shape, -1).sum(1), logits


def _has_usual_gate(experts: Any) -> bool:
    """Whether its gated product is `Kernels.gated`'s: the first half is the gate, and nothing is clamped."""
    if _takes_scaled(experts):
        return True
    if not experts.has_gate:
        return False
    module: str = type(experts)._apply_gate.__module__  # a class that clamps has a function of its own
    return module == "transformers.integrations.moe"


def _activation(function: Any) -> str:
    """The name of an activation in `ACTIVATIONS`; empty if it is another one, or None."""
    if function is None:
        return ""
    asked = torch.linspace(-4, 4, 33)
    same = (
        name for name, each in ACTIVATIONS.items() if torch.allclose(each(asked), function(asked), atol=1e-6)
    )
    return next(same, "")


def _replace(module: Any, forward: Callable[..., Tensor]) -> None:
    """Models ask for the type of weights, so that empty ones stay."""
    for name, parameter in module.named_parameters():
        if name == "bias":
            module.bias = None
        else:
            setattr(module, name, nn.Parameter(parameter.data.new_empty(0), requires_grad=False))
    module.forward = forward
