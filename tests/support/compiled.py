"""Compile the kernels for GPUs that are not here: `TRITON_INTERPRET=0 python -m tests.support.compiled 90`.

Launches are intercepted: what would have been launched, with its very arguments, is compiled to machine code.
Prints each kernel with the shared memory that a program of it takes, a thread's registers, the bytes that did
not fit into them, on Hopper of a decode's attention over each format of pages the instructions of the loop
that multiplies, and the seconds of compiling. To disassemble a kernel takes as long as to compile it. Only
attention is compiled for capabilities other than 80 and 90; for 89 also what is largest with float32.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from triton import JITFunction
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from gpu_worker.kernels.attention import AttentionSpec, LayerCache, Rotary
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.products import Clamped, Expert, Routing
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.attention.attention import TritonStep
from gpu_worker.kernels.triton.copies import BlockCopies
from gpu_worker.kernels.triton.kv import FORMATS
from gpu_worker.kernels.triton.mixture.fp8_groups_mixture import GroupsMixture
from gpu_worker.kernels.triton.mixture.int4_mixture import Int4Mixture
from gpu_worker.kernels.triton.mixture.mixture import TritonMixture
from gpu_worker.kernels.triton.mixture.route import TritonRoute
from gpu_worker.kernels.triton.norm import TritonNorm, gated
from gpu_worker.kernels.triton.products.fp8_groups import TritonGroupsLinear
from gpu_worker.kernels.triton.products.int4 import MOST_TOKENS, TritonInt4Linear
from gpu_worker.kernels.triton.products.quantized import TritonQuantizedLinear
from gpu_worker.kernels.triton.sampling.sample import sample
from gpu_worker.sampling.parameters import SamplingTable
from tests.support.machine_code import multiplying_loop, resources
from tests.support.paged import make_step, zeros
from tests.support.ptx.driver import SHARED
from tests.support.scaled import fp8_groups, scaled_fp4

TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}


OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
TENSOR_MEMORY = 512
"""Columns of Blackwell's memory for the sums of products."""


def main(capability: int) -> None:
    seen: set[str] = set()
    attends: Counter[str] = Counter()

    def compiled(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        values = dict(zip(kernel.arg_names, args, strict=False)) | named
        places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
        fixed = {each.name for each in kernel.params if each.is_constexpr or values[each.name] is None}
        signature = {name: "constexpr" if name in fixed else kind(values[name]) for name in places}
        aligned = {places[name]: [["tt.divisibility", 16]] for name, of in signature.items() if of[0] == "*"}
        source = ASTSource(kernel, signature, {places[name]: values[name] for name in fixed}, aligned)
        if source.hash() in seen:
            return
        seen.add(source.hash())
        began = time.perf_counter()
        found = compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        seconds = time.perf_counter() - began
        assert found.metadata.shared <= SHARED[capability], (capability, kernel.__name__, named)
        assert (found.metadata.tmem_size or 0) <= TENSOR_MEMORY, (capability, kernel.__name__, named)
        # Of two such sums ptxas 12.8 may forget the constant of one: seen on an H100, in int4 weights.
        assert "add.s16x2" not in found.asm["ptx"], f"{kernel.__name__}: sums of 16 bits, two at a time"
        cubin = found.asm["cubin"]
        name = kernel.__name__
        attends[name] += name.startswith("attend")
        loop = multiplying_loop(cubin) if capability == 90 and 0 < attends[name] <= len(FORMATS) else "-"
        numbers = found.metadata.shared, *resources(cubin), loop, round(seconds, 1)
        print(capability, name, *numbers, flush=True)

    JITFunction.run = compiled
    gpu.capability = lambda device: divmod(capability, 10)
    if capability in (80, 90):
        launch_attention([AUTO])
        launch_rest()
    else:
        launch_attention(FORMATS)
    if capability == 89:  # tensor memory does not hold the sums of so many heads
        for kv in FORMATS:
            attend([(1, 5000), (1, 40)], 512, torch.bfloat16, kv, AttentionSpec(), (64, 1))
        for dim, heads in ((512, (8, 2)), (256, (64, 1))):
            attend([(300, 4000)], dim, torch.float32, AUTO, AttentionSpec(), heads)
        products_of_4_bits(torch.float32)


def kind(value: Any) -> str:
    """As Triton writes types."""
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def launch_attention(chunked: Iterable[str]) -> None:
    """In the ways that differ most. Decodes over each format come first. `chunked`: formats of the latent
    pages that prompts read; large tiles over those of one byte spill on Hopper."""
    decodes, mixed = [(1, 5000), (1, 40)], [(1, 9000), (300, 4000), (5, 64)]
    for kv in FORMATS:
        attend(decodes, 128, torch.bfloat16, kv, AttentionSpec())
    attend(decodes, 80, torch.bfloat16, "int8", AttentionSpec(window=100, sinks=4, softcap=5.0))
    attend(mixed, 128, torch.bfloat16, AUTO, AttentionSpec())
    attend(mixed, 256, torch.bfloat16, "int8", AttentionSpec(window=100, sinks=4))
    attend(mixed, 64, torch.float32, AUTO, AttentionSpec())
    attend(mixed, 512, torch.bfloat16, AUTO, AttentionSpec())
    for kv in FORMATS:
        attend_latent(decodes, 16, torch.bfloat16, kv)
    for kv in chunked:
        attend_latent(mixed, 128, torch.bfloat16, kv)
    attend(mixed, 128, torch.float16, "fp8", AttentionSpec(window=100, sinks=4))


def launch_rest() -> None:
    """Every other kernel, in the ways that differ most."""
    hidden = torch.zeros((3, 4096), dtype=torch.bfloat16)
    TritonNorm(hidden[0], 1e-5)(hidden)
    TritonNorm(hidden[0, :128], 1e-5).each(hidden[:, :1024])
    for activation in ("silu", "gelu", "gelu_tanh"):
        gated(hidden, activation)
    for numbers in (torch.int8, FP8):
        TritonQuantizedLinear(hidden[:, :64], hidden[0, :3], torch.float32, numbers)(hidden[:, :64])
    for tokens in (1, 600):
        mix(tokens, None)
    for tokens in (1, 600):
        mix(tokens, FP8)
        mix(tokens, torch.int8)
    for tokens in (1, 100, 600):  # of which 600 dequantize experts
        mix(tokens, None, Int4Mixture)
        mix(tokens, None, Int4Mixture, fp4=True)
        mix(tokens, None, GroupsMixture, groups=True)
    products_of_4_bits(torch.bfloat16)
    BlockCopies([pages(PageShape(2, 16, 16), torch.bfloat16, "int8")])(torch.tensor([1]), torch.tensor([2]))
    draw()


def mix(
    tokens: int,
    numbers: torch.dtype | None,
    kind: type[TritonMixture] = TritonMixture,
    fp4: bool = False,
    groups: bool = False,
) -> None:
    """A mixture that selects 8 of 32 experts. `fp4`: with weights of fp4, biases and clamped gates. `groups`:
    with weights of fp8 in groups."""
    if fp4:
        up, down = (scaled_fp4(*shape, torch.bfloat16) for shape in ((256, 2048), (2048, 128)))
        own, activation = Expert(up, down, up[:, 0].clone(), down[:, 0].clone()), Clamped(1.7, 7.0)
    elif groups:
        up, down = (fp8_groups(*shape, 128, torch.bfloat16) for shape in ((256, 2048), (2048, 128)))
        own, activation = Expert(up, down), "silu"
    else:
        up, down = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((256, 2048), (2048, 128)))
        own, activation = Expert(up, down), "silu"
    hidden, router_logits = torch.zeros((tokens, 2048), dtype=torch.bfloat16), torch.zeros((tokens, 32))
    routed = TritonRoute(Routing(8), router_logits[0])(router_logits)
    kind([own] * 32, 32, activation, numbers)(hidden, *routed)


def products_of_4_bits(dtype: torch.dtype) -> None:
    """And of fp8 in groups. Every size of a tile: a GPU of one processor takes those that are for many
    outputs."""
    hidden = torch.zeros((MOST_TOKENS + 1, 2048), dtype=dtype)
    for processors, rows in ((1, (16, 64)), (132, (8, 16, 32, 64, MOST_TOKENS + 1))):
        product = TritonInt4Linear(torch.zeros((384, 2048), dtype=dtype), None, processors)
        for tokens in rows:
            product(hidden[:tokens])
    floats = TritonInt4Linear(scaled_fp4(384, 2048, dtype), None, 132)
    for tokens in (8, 64, MOST_TOKENS + 1):
        floats(hidden[:tokens])
    in_groups = TritonGroupsLinear(fp8_groups(384, 2048, 128, dtype), None, dtype, 132)
    for tokens in (8, 64, MOST_TOKENS + 1):
        in_groups(hidden[:tokens])
    half = hidden[:1].half()
    TritonInt4Linear(half, half[0, :1], 132).add_to(half, half[:, :1])


def draw() -> None:
    """Sampling with all that can be asked for, over the logits of a large vocabulary."""
    state = SamplingTable(torch.zeros((2, 50), dtype=torch.int32), vocab_size=7).state
    state.flags[:] = 7
    order = np.arange(2, dtype=np.int32)
    sample(torch.zeros((2, 128_256)), order, torch.from_numpy(order).long(), order, state)


def attend(
    rows: list[tuple[int, int]],
    dim: int,
    dtype: torch.dtype,
    kv: str,
    spec: AttentionSpec,
    heads: tuple[int, int] = (8, 2),
) -> None:
    """`heads`: query heads and key heads."""
    step = TritonStep(make_step(rows, 16, torch.Generator()), processors=132)
    cache, table = pages(PageShape(heads[1], dim, dim), dtype, kv), torch.zeros((8, dim // 2))
    qkv = torch.zeros((sum(length for length, _ in rows), (heads[0] + 2 * heads[1]) * dim), dtype=dtype)
    query = step.rotate_and_write(qkv, Rotary(table, table), cache)
    step.attend(query, cache, spec, slopes=torch.zeros(8) if spec.softcap else None)


def attend_latent(rows: list[tuple[int, int]], heads: int, dtype: torch.dtype, kv: str) -> None:
    """At the sizes of DeepSeek's models."""
    step = TritonStep(make_step(rows, 16, torch.Generator()), processors=132)
    tokens = sum(length for length, _ in rows)
    cache = pages(PageShape(1, 512 + 64, 512, shared=True), dtype, kv)
    query, latent = torch.zeros((tokens, heads, 576), dtype=dtype), torch.zeros((tokens, 576), dtype=dtype)
    table = torch.zeros((8, 32))
    step.write_latent(query, latent, Rotary(table, table), cache)
    step.attend(query, cache)


def pages(shape: PageShape, dtype: torch.dtype, kv: str) -> LayerCache:
    return FORMATS[kv](dtype, torch.device("cpu")).allocate(shape, 4, 16, zeros)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        main(int(each))
