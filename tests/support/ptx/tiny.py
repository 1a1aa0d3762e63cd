"""Kernels of a few lines, written by hand."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.support.ptx.counts import Counts
from tests.support.ptx.device import DeviceMemory
from tests.support.ptx.run import Code

REGISTERS = ".reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .b64 %d<16>; .reg .b32 %t;"


def run(
    body: str, tensors: Sequence[Tensor], threads: int = 32, shared: int = 0, programs: int = 1
) -> Counts:
    """Run lines of PTX that have the tensors' addresses in %d0, %d1 … and the thread's number in %t.

    Registers: %p0 to %p7 predicates, %h 16 bits, %r 32 bits, %d 64 bits.
    """
    names = [f"p{number}" for number in range(len(tensors))]
    loads = " ".join(f"ld.param.b64 %d{number}, [{name}];" for number, name in enumerate(names))
    text = f"""
        .visible .entry tiny({", ".join(f".param .u64 {name}" for name in names)}) .reqntid {threads}
        {{ {REGISTERS} {loads} mov.u32 %t, %tid.x; {body} ret; }}"""
    counts = Counts()
    places = {name: tensor.data_ptr() for name, tensor in zip(names, tensors, strict=True)}
    Code(text).launch((programs, 1, 1), places, DeviceMemory(tensors), shared, counts)
    return counts


def compute(opcode: str, *sources: Tensor | str, to: torch.dtype) -> Tensor:
    """What one instruction gives up to 32 threads: sources are tensors, a number a thread, or text."""
    tensors = [source for source in sources if isinstance(source, Tensor)]
    out = torch.zeros(len(tensors[0]), dtype=to)
    lines, operands = [], [_register(to.itemsize, 0)]
    for number, tensor in enumerate(tensors, 1):
        lines.append(f"mad.wide.u32 %d9, %t, {tensor.itemsize}, %d{number};")
        lines.append(f"ld.global.b{8 * tensor.itemsize} {_register(tensor.itemsize, number)}, [%d9];")
    names = iter(_register(tensor.itemsize, number) for number, tensor in enumerate(tensors, 1))
    operands += [source if isinstance(source, str) else next(names) for source in sources]
    lines.append(f"{opcode} {', '.join(operands)};")
    lines.append(f"mad.wide.u32 %d9, %t, {to.itemsize}, %d0;")
    lines.append(f"st.global.b{8 * to.itemsize} [%d9], {operands[0]};")
    body = f"setp.ge.u32 %p7, %t, {len(out)}; @%p7 ret; " + " ".join(lines)
    run(body, [out, *tensors])
    return out


def _register(size: int, number: int) -> str:
    return {2: "%h", 4: "%r", 8: "%d"}[size] + str(number + 10 if size == 8 else number + 1)
