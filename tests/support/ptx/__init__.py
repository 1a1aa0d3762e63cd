"""Runs on a CPU what Triton compiles for GPUs: an emulator of PTX, the code before a GPU's own.

    driver.py      what Triton asks of a GPU's driver: kernels are launched with tensors of the CPU
    parse.py       text ──▶ instructions
    run.py         instructions ──▶ steps over a wave: some programs of the grid at once
    wave.py        what steps change: a register is an array, with an entry for each thread
    types.py       what bits of a register stand for
    operands.py    how steps reach registers
    arithmetic.py, bits.py, convert.py, movement.py, warps.py, matrices.py, warpgroups.py     the steps
    device.py      memory of the launch's tensors, and nothing else
    shared.py      memory of a program: written before it is read, and with a barrier between two warps
    pending.py     what is under way until somebody waits for it
    counts.py      what a launch asked for
    tiny.py        kernels of a few lines, for tests of all that

What is not known here raises `PtxError`. What a GPU computes roughly (`.approx`, `.full`) is computed well.
An instruction is executed by all threads of a warp before the next one: where some of them would need a
`bar.warp.sync`, that is not seen. Nor is it if programs of a launch look at each other's results.
The source is NVIDIA's *Parallel Thread Execution ISA*, 8.7.
"""
