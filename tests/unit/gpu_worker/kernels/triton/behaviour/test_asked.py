"""What compiled kernels ask of memory: little in vain, and of shared memory what lies in different banks."""

import triton

from tests.support.asked import launches
from tests.support.ptx.counts import SECTOR
from tests.support.ptx.driver import counted

BOUND_BY_MEMORY = {
    "decode, bfloat16 pages": "attend_tile",
    "decode, int8 pages": "attend_tile",
    "int4 product, tokens: 1": "multiply_int4",
    "int4 product, tokens: 16": "multiply_int4",
}


def test_what_is_bound_by_memory_wastes_little_of_it() -> None:
    checked = 0
    for name, launch in launches():
        if name in BOUND_BY_MEMORY:
            with counted(triton.runtime.driver.active) as kernels:
                launch()
            counts = kernels[BOUND_BY_MEMORY[name]]
            assert SECTOR * counts.sectors < 1.1 * counts.wanted, name
            assert counts.turns < 1.3 * counts.least, name
            checked += 1
    assert checked == len(BOUND_BY_MEMORY)
