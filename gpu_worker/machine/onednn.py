"""What PyTorch's oneDNN can do on this processor."""

import torch


def has_onednn_bfloat16() -> bool:
    """Whether PyTorch lets oneDNN multiply bfloat16 on this processor, as with AVX-512."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
