"""The interface of checkpoint formats, and how they read `quantization_config`."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from gpu_worker.models.formats.stored import QuantizedWeight
from gpu_worker.models.values import Values

KEY = "quantization_config"
IN_MLX_FORM = "a model in MLX's form is not read: name the original"

Tensors = Mapping[str, Tensor]
"""Tensors of one product by the end of their names, such as `weight` and `weight_scale`."""


class Format(Protocol):
    """A checkpoint format: how a product's weight is stored in fewer bits.

    Products that a checkpoint leaves in the model's type are told by their tensors, not by config.json: they
    have no scales.
    """

    @property
    def name(self) -> str:
        """For the log."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Ends of the names of all tensors that a quantized product may have, but not `bias`. Some are not
        read, such as scales of activations."""

    def weight(self, product: str, tensors: Tensors) -> QuantizedWeight | None:
        """The weight of a product. None: the product is not quantized.

        `product`: prefix of the names of its tensors, for messages. Raises `ModelError`.
        """


def choice(values: Values, key: str, known: tuple[Any, ...], default: Any = None, within: str = "") -> Any:
    """The value of a key of `quantization_config`. Raises `ModelError` if it is not one of `known`.

    `within`: path to the object `values` in `quantization_config`, with a dot at its end.
    """
    value = values.get(key, default)
    if value not in known:
        names = ", ".join(str(one) for one in known)
        raise values.wrong(f"{KEY}.{within}{key}", f"{value!r} is not supported ({names})")
    return value


def pair(values: Values, key: str, within: str = "") -> tuple[int, int] | None:
    """A pair of positive integers, or None if the key is missing. Raises `ModelError`."""
    value = values.get(key)
    if value is None:
        return None
    numbers = value if isinstance(value, list) else []
    if len(numbers) != 2 or not all(type(one) is int and one > 0 for one in numbers):
        raise values.wrong(f"{KEY}.{within}{key}", f"two positive integers are needed, not {value!r}")
    return numbers[0], numbers[1]
