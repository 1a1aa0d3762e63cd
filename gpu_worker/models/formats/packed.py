"""Numbers of less than a byte, several of which a word holds."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gpu_worker.models.formats.stored import Coded, Numbers

Layout = Literal["low", "high", "halves"]
"""Where the first, second, .. number of a word lies.

low       in the lowest bits, the next bits, ..
high      in the highest bits of the first byte, its next bits, ..
halves    alternately in the lower and in the upper half of the word, in each as `low`
"""


def unpack(words: Tensor, bits: int, layout: Layout = "low") -> Tensor:
    """Numbers of 2, 4 or 8 bits in words [rows, n], any integers: uint8 [rows, n * numbers of a word]."""
    octets = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    mask = (1 << bits) - 1
    if bits < 8:
        parts = [octets >> shift & mask for shift in range(0, 8, bits)]
        octets = torch.stack(parts[::-1] if layout == "high" else parts, dim=-1).flatten(1)
    if layout == "halves":
        octets = octets.view(*words.shape, 2, -1).transpose(2, 3).flatten(1)
    return octets


@dataclass(frozen=True, slots=True)
class Packed:
    """Numbers packed along `in`. See `Numbers`."""

    words: Tensor
    """[out, words], integers."""
    bits: int
    columns: int
    """Inputs. The last word may have more numbers."""
    layout: Layout = "low"
    table: Tensor | None = None
    """Number that the bits mean, float32 [2 ** bits]. None: a whole number without a sign."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.words), self.columns

    @property
    def limits(self) -> tuple[int, int] | None:
        return (0, (1 << self.bits) - 1) if self.table is None else None

    def part(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        each = 8 * self.words.element_size() // self.bits
        first = columns.start // each
        words = self.words[rows, first : -(-columns.stop // each)].to(device)
        start = columns.start - first * each
        numbers = unpack(words, self.bits, self.layout)[:, start : start + columns.stop - columns.start]
        return numbers if self.table is None else self.table.to(device)[numbers.int()]

    def coded(self, rows: slice, columns: slice) -> Coded | None:
        found = replace(self, table=None).part(rows, columns, torch.device("cpu"))
        if self.bits > 4:
            return Coded(found ^ 128, "int8", missing=128)
        return Coded(found, "table", torch.arange(16.0) if self.table is None else self.table)


@dataclass(frozen=True, slots=True)
class Turned:
    """The numbers of another weight, [in, out], as [out, in]. See `Numbers`."""

    numbers: Numbers

    @property
    def table(self) -> Tensor | None:
        return self.numbers.table

    @property
    def shape(self) -> tuple[int, int]:
        inputs, out = self.numbers.shape
        return out, inputs

    @property
    def limits(self) -> tuple[int, int] | None:
        return self.numbers.limits

    def part(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        return self.numbers.part(columns, rows, device).t()

    def coded(self, rows: slice, columns: slice) -> Coded | None:
        found = self.numbers.coded(columns, rows)
        return None if found is None else replace(found, numbers=found.numbers.t())
