"""What compiled kernels ask of a GPU, counted: `TRITON_INTERPRET=0 python -m tests.support.asked 90`.

Launches of realistic tiles, few of each, run in an emulator (`tests/support/ptx/`). Printed of each kernel:

    bytes            of device memory that warps asked for or gave, those of several threads once
    sectors          bytes of the 32 that memory gives at a time, over those: 1 if nothing came in vain
    turns            in which shared memory answered, over those it takes if no two words are of one bank
    instructions     of warps, for each KiB of device memory
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from gpu_worker.kernels.attention import Rotary
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.products import Expert
from gpu_worker.kernels.triton.attention.attention import TritonStep
from gpu_worker.kernels.triton.mixture.int4_mixture import Int4Mixture
from gpu_worker.kernels.triton.mixture.mixture import TritonMixture
from gpu_worker.kernels.triton.norm import TritonNorm, gated
from gpu_worker.kernels.triton.products.int4 import TritonInt4Linear
from gpu_worker.kernels.triton.products.quantized import TritonQuantizedLinear
from gpu_worker.kernels.triton.sampling.sample import sample
from gpu_worker.sampling.parameters import SamplingTable
from proto.sampling import greedy
from proto.worker_pb2 import NewSlot
from tests.support.emulated import emulate
from tests.support.paged import Heads
from tests.support.ptx.counts import SECTOR
from tests.support.ptx.driver import counted
from tests.support.triton_paged import make_paged

BF16 = torch.bfloat16
PROCESSORS = 132
LLAMA, DEEPSEEK = Heads(32, 8, 128), Heads(16, 1, 576, rank=512)
DECODE, PROMPT = [(1, 1024)], [(256, 512)]


def launches() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is launched, and how."""
    for name, kv in (("bfloat16", AUTO), ("int8", "int8"), ("fp8", "fp8")):
        yield f"decode, {name} pages", attention(DECODE, LLAMA, kv)
    yield "prompt", attention(PROMPT, LLAMA, AUTO)
    for name, kv in (("bfloat16", AUTO), ("int8", "int8")):
        yield f"latent decode, {name} pages", attention(DECODE, DEEPSEEK, kv)
    yield "rotate, int8 pages", rotation("int8")
    hidden = torch.randn((64, 4096)).to(BF16)
    yield "norm", lambda: TritonNorm(hidden[0], 1e-5)(hidden)
    yield "activation", lambda: gated(hidden, "silu")
    weight = torch.randn((1024, 4096)).to(BF16)
    yield "int8 product", partial(TritonQuantizedLinear(weight, None, BF16, torch.int8), hidden)
    product = TritonInt4Linear(weight[:256], None, PROCESSORS)
    for tokens in (1, 16, 32, 64):
        yield f"int4 product, tokens: {tokens}", partial(product, hidden[:tokens])
    for tokens in (1, 64):
        yield f"mixture, tokens: {tokens}", mixture(TritonMixture, tokens)
        yield f"mixture of int4, tokens: {tokens}", mixture(Int4Mixture, tokens)
    yield "sampling", drawing


def attention(rows: list[tuple[int, int]], heads: Heads, kv: str) -> Callable[[], Any]:
    paged = make_paged(rows, heads, 16, BF16, kv)
    return lambda: TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)


def rotation(kv: str) -> Callable[[], Any]:
    paged = make_paged([(64, 64)], LLAMA, 16, BF16, kv)
    qkv, table = torch.randn((64, (32 + 2 * 8) * 128)).to(BF16), torch.ones((64, 64))
    return lambda: TritonStep(paged.step, PROCESSORS).rotate_and_write(qkv, Rotary(table, table), paged.plain)


def mixture(kind: type[TritonMixture], tokens: int) -> Callable[[], Any]:
    experts = [Expert(torch.randn((512, 512)).to(BF16), torch.randn((512, 256)).to(BF16)) for _ in range(4)]
    hidden, selected_experts = (
        torch.randn((tokens, 512)).to(BF16),
        torch.arange(2 * tokens).view(tokens, 2) % 4,
    )
    return lambda: kind(experts, 4, "silu", None)(hidden, torch.ones((tokens, 2)), selected_experts)


def drawing() -> None:
    table = SamplingTable(torch.zeros((2, 50), dtype=torch.int32), vocab_size=7)
    table.set([NewSlot(slot=slot, sampling=greedy(temperature=1, top_p=0.9)) for slot in range(2)])
    table.state.flags[:] = 7
    order = np.arange(2, dtype=np.int32)
    sample(torch.randn((2, 32_000)), order, torch.from_numpy(order).long(), order, table.state)


def main(capability: int) -> None:
    driver = emulate(capability)
    print("| launch | kernel | bytes | sectors | turns | instructions |\n|---|---|---|---|---|---|")
    for name, launch in launches():
        with counted(driver) as kernels:
            launch()
        for kernel, counts in kernels.items():
            touched, turns = SECTOR * counts.sectors / counts.wanted, counts.turns / max(1, counts.least)
            each = sum(counts.instructions.values()) / counts.wanted * 1024
            print(
                f"| {name} | `{kernel}` | {counts.wanted} | {touched:.2f} | {turns:.2f} | {each:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
