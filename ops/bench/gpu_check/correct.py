"""Compares the kernels with plain PyTorch on the same device, over a small grid of cases."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from gpu_worker.kernels.attention import FULL_ATTENTION, AttentionSpec, Rotary, StepAttention
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.copies import BlockCopies
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.kernels.triton.kv import FORMATS
from ops.bench.gpu_check import fp8_groups, int4, mixture, one_byte
from ops.bench.gpu_check.bench import Bench, Row
from ops.bench.gpu_check.cases import Heads, make_step, pages_for, random
from ops.bench.rig.pages import copied, make_pages

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Allowed difference by dtype: absolute for numbers up to 1, relative for larger ones."""

UNROUNDED = 5e-4
"""Allowed difference of float32 sums of bfloat16: far less than a rounding to bfloat16 would cause."""

DECODES = [(1, 1), (1, 17), (1, 700), (1, 5000)]
DRAFTS = [(1, 40), (4, 4), (3, 2050)]
MIXED = [(1, 1), (1, 300), (1, 3000), (2, 2), (33, 97), (300, 300), (200, 1500)]
STEPS = [DECODES, DRAFTS, MIXED]
TINY = [[(1, 1), (1, 300), (2, 2), (9, 20)]]


SHARE = "share of what is allowed"

HEADS = Heads(8, 2, 128)


@dataclass(frozen=True)
class Case:
    """A case of attention."""

    rows: list[tuple[int, int]]
    heads: Heads = HEADS
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    kv: str = AUTO
    """KV format of the pages."""
    spec: AttentionSpec = FULL_ATTENTION
    biased: bool = False
    """Whether linear biases (ALiBi) are added."""


def cases(dry: bool) -> list[Case]:
    """The grid: each case differs from `Case`'s defaults in one thing, or a few."""
    if dry:
        return [Case(TINY[0], Heads(4, 2, 16), dtype=torch.float32, kv=kv) for kv in FORMATS]
    found = []
    for rows in STEPS:
        found += [Case(rows, Heads(8, 2, dim)) for dim in (64, 80, 96, 128, 192, 256)]
        found += [Case(rows, Heads(query, kv, 128)) for query, kv in ((4, 4), (9, 3), (14, 2), (71, 1))]
        found += [Case(rows, block_size=size) for size in (8, 32, 256)]
        found += [Case(rows, dtype=torch.float32)]
        specs = (
            AttentionSpec(window=50),
            AttentionSpec(window=1000, sinks=4),
            AttentionSpec(window=40, sinks=70, softcap=5.0),
        )
        found += [Case(rows, spec=spec) for spec in specs]
        found += [Case(rows, biased=True), Case(rows, spec=specs[2], biased=True)]
        for kv in (name for name in FORMATS if name != AUTO):
            found += [Case(rows, kv=kv), Case(rows, HEADS, 7, kv=kv, spec=specs[2])]
            found += [Case(rows, Heads(8, 2, 80), dtype=torch.float16, kv=kv)]
            found += [Case(rows, Heads(8, 2, dim), kv=kv) for dim in (64, 256)]
    return found


def check(bench: Bench) -> None:
    """Check all kernels. One row for each kind of kernel: its number of cases and its worst difference."""
    kernels = TritonKernels(bench.device)
    worst, count = 0.0, 0
    for case in bench.own_share(cases(bench.dry)):
        if not bench.has_time(f"attention {case}"):
            break
        error = attention_error(case, kernels, bench)
        bench.expect(error <= TOLERANCES[case.dtype], f"attention is off by {error:.2g}: {case}")
        worst, count = max(worst, error / TOLERANCES[case.dtype]), count + 1
    _note("attention", count, worst, bench)
    others: list[tuple[str, Callable[[TritonKernels, Bench], float]]]
    others = [("writing", writing), ("layers", layers), ("copies", copies), ("latent", latent)]
    others += [("bytes in pages", one_byte.written), ("products of bytes", one_byte.products)]
    others += [("mixture", mixture.check), ("products of fp8 in groups", fp8_groups.products)]
    others += [
        (f"products of 4 bits, {dtype}", partial(int4.products, dtype))
        for dtype in ((torch.float32,) if bench.dry else int4.ALLOWED)
    ]
    for name, part in bench.own_share(others):
        worst = part(kernels, bench)
        bench.expect(worst <= 1, f"{name}: off by {worst:.2g} times what is allowed")
        _note(name, 1, worst, bench)


def merged(rows: list[Row]) -> list[Row]:
    """A row for each kind of kernel, of the rows of all shards."""
    found = dict[str, Row]()
    for row in rows:
        same = found.setdefault(row["kind"], row | {"cases": 0})
        same["cases"] += row["cases"]
        same[SHARE] = max(same[SHARE], row[SHARE])
    return list(found.values())


def _note(kind: str, count: int, worst: float, bench: Bench) -> None:
    bench.note("kernels", {"kind": kind, "cases": count, SHARE: round(worst, 3)})


def attention_error(case: Case, kernels: TritonKernels, bench: Bench) -> float:
    """The largest difference of attention from the reference in float32: see `max_error`."""
    step = make_step(case.rows, case.block_size, bench)
    kv = kernels.kv_format(case.kv, case.dtype)
    cache = pages_for(step, case.heads.pages, case.block_size, kv, bench)
    query = random((len(step.positions), case.heads.query, case.heads.dim), case.dtype, bench)
    slopes = 0.5 ** torch.arange(1, case.heads.query + 1, device=bench.device) if case.biased else None
    found = kernels.begin(step).attend(query, cache, case.spec, slopes)
    expected = ReferenceStep(step).attend(query.float(), cache, case.spec, slopes)
    return max_error(found, expected)


def max_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference: absolute for numbers up to 1, relative for larger ones. Infinite with a NaN."""
    right = expected.float()
    error = (found.float() - right).abs() / right.abs().clamp(min=1)
    return float(error.nan_to_num(torch.inf).max())


def writing(kernels: TritonKernels, bench: Bench) -> float:
    """The error of rotation and of writing to pages, over the allowed error."""
    worst, heads = 0.0, Heads(4, 2, 16) if bench.dry else Heads(32, 8, 128)
    for dtype in (torch.float32,) if bench.dry else (torch.float32, torch.bfloat16):
        step = make_step([(1, 9), (5, 64), (20, 20)], 16, bench)
        qkv = random((len(step.positions), (heads.query + 2 * heads.kv) * heads.dim), dtype, bench)
        angles = random((64, heads.dim // 2), torch.float32, bench) * 7
        rotary = Rotary(angles.cos(), angles.sin())
        own = pages_for(step, heads.pages, 16, kernels.kv_format(AUTO, dtype), bench)
        other = copied(own)
        query = kernels.begin(step).rotate_and_write(qkv, rotary, own)
        expected = ReferenceStep(step).rotate_and_write(qkv, rotary, other)
        pairs = ((query, expected), (own.keys, other.keys), (own.values, other.values))
        worst = max(worst, *(max_error(*pair) / TOLERANCES[dtype] for pair in pairs))
    return worst


def layers(kernels: TritonKernels, bench: Bench) -> float:
    """The error of norms, gated activations and logits, over the allowed error."""
    size = 48 if bench.dry else 4096
    reference = ReferenceKernels()
    hidden = random((7, size), torch.float32, bench)
    weight = random((size,), torch.float32, bench)
    gate = random((2 * size, size), torch.float32, bench) / size**0.5
    pairs = (
        (kernels.norm(weight, 1e-5)(hidden), reference.norm(weight, 1e-5)(hidden)),
        (kernels.gated(gate)(hidden), reference.gated(gate)(hidden)),
    )
    narrow, row = gate.bfloat16(), hidden.bfloat16()
    logits = kernels.linear(narrow, dtype=torch.float32)(row)
    unrounded = max_error(logits, row.double() @ narrow.double().t()) / UNROUNDED
    return max(unrounded, *(max_error(*pair) / TOLERANCES[torch.float32] for pair in pairs))


def latent(kernels: TritonKernels, bench: Bench) -> float:
    """The error of latent attention at the sizes of DeepSeek's models, over the allowed error."""
    worst, (rank, rotated) = 0.0, (20, 8) if bench.dry else (512, 64)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    many = 4 if bench.dry else 128
    kinds = [(many if kv == AUTO else 16, kv) for kv in FORMATS]
    for rows, (heads, kv) in product(TINY if bench.dry else STEPS, kinds):
        step = make_step(rows, 16, bench)
        tokens, size = len(step.positions), rank + rotated
        shape = PageShape(1, size, rank, shared=True)
        cache = pages_for(step, shape, 16, kernels.kv_format(kv, dtype), bench)
        caches = [cache, copied(cache)]
        query = random((tokens, heads, size), dtype, bench)
        row = random((tokens, size), dtype, bench)
        angles = random((max(step.context_lengths), rotated // 2), torch.float32, bench) * 7
        rotary = Rotary(angles.cos(), angles.sin())
        found = []
        both: list[tuple[StepAttention, torch.dtype]] = [
            (kernels.begin(step), dtype),
            (ReferenceStep(step), torch.float32),
        ]
        for (attention, wide), cache in zip(both, caches, strict=True):
            own = query.clone()
            attention.write_latent(own, row.clone(), rotary, cache)
            found.append((attention.attend(own.to(wide), cache), own))
        worst = max(worst, *(max_error(*pair) / TOLERANCES[dtype] for pair in zip(*found, strict=True)))
    return worst


def copies(kernels: TritonKernels, bench: Bench) -> float:
    """Copies of blocks in several layers: 0 if they are equal, infinity if not."""
    kv = kernels.kv_format(AUTO, torch.bfloat16)
    caches = [make_pages(kv, PageShape(2, 32, 32), 9, 16, bench.device, bench.generator) for _ in range(3)]
    tensors = [tensor for cache in caches for tensor in cache.tensors()]
    expected = [tensor.clone() for tensor in tensors]
    sources, targets = (torch.tensor(blocks, device=bench.device) for blocks in ([3, 3, 0], [1, 8, 5]))
    for tensor in expected:
        tensor[targets] = tensor[sources]
    BlockCopies(caches)(sources, targets)
    same = all(tensor.equal(right) for tensor, right in zip(tensors, expected, strict=True))
    return 0.0 if same else float("inf")
