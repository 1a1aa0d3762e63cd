"""The products of latent attention with absorbed weights, in plain PyTorch on every device."""

import torch
from torch import Tensor


class ReferenceAbsorbed:
    """See `Absorbed`."""

    def __init__(self, up_key: Tensor, up_value: Tensor) -> None:
        self._up_key, self._up_value = up_key.contiguous(), up_value.contiguous()

    def queries(self, plain: Tensor) -> Tensor:
        return torch.bmm(plain.transpose(0, 1), self._up_key).transpose(0, 1)

    def values(self, mixed: Tensor) -> Tensor:
        return torch.bmm(mixed.transpose(0, 1), self._up_value).transpose(0, 1)
