"""Slopes of linear biases, for any number of heads, are those of the models that have them."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from gpu_worker.models.alibi import slopes


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 25, 71, 112])
def test_bloom_and_mpt(heads: int) -> None:
    ours = torch.tensor(slopes(heads))
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0]
    torch.testing.assert_close(bloom[:, 1] - bloom[:, 0], ours)
    mpt = build_mpt_alibi_tensor(heads, 2)[:, 0]
    torch.testing.assert_close(mpt[:, 1] - mpt[:, 0], ours)


def test_another_steepest_slope() -> None:
    mpt = build_mpt_alibi_tensor(6, 2, alibi_bias_max=16)[:, 0]
    torch.testing.assert_close(mpt[:, 1] - mpt[:, 0], torch.tensor(slopes(6, 16.0)))
