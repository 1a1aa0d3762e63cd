"""Numbers of one byte, read two at a time: as words, even dimensions low, odd ones high.

    words of a row    │ d1 d0 │ d3 d2 │ d5 d4 │ ...        16 bits each, which matrix units load by themselves
    as float16        │ d0 │ d2 │ d4 │ ...   and   │ d1 │ d3 │ d5 │ ...

A product over all dimensions is one over the even and one over the odd ones. Every number of int8 and of fp8
is one of float16, so nothing is rounded here. Two words become four numbers in four or five operations; bytes
by themselves would take as many each.

So the kernels have what they multiply in parts, a tuple of matrices: the two of words, or one that is all.
"""

import triton
import triton.language as tl


@triton.jit
def sizes(rows):
    """The largest of each row's numbers [M, D] without their signs, float32 [M]; more than 0."""
    return tl.maximum(tl.max(tl.abs(rows.to(tl.float32)), axis=1), 1e-30)


@triton.jit
def apart(rows, size):
    """Even and odd numbers of rows [M, D], float16, in units of `size` [M]."""
    whole = (rows.to(tl.float32) * (1.0 / size)[:, None]).to(tl.float16)
    return tl.split(tl.reshape(whole, [rows.shape[0], rows.shape[1] // 2, 2]))


@triton.jit
def together(numbers):
    """Rows [M, D] that come in parts."""
    result = numbers[0]
    if len(numbers) == 2:
        result = tl.reshape(tl.join(numbers[0], numbers[1]), [result.shape[0], 2 * result.shape[1]])
    return result
