"""What the interpreter runs a compiler also takes: it is stricter about types and shapes."""

import os
import subprocess
import sys

import pytest

ALL = bool(os.environ.get("TEST_INTERPRETED"))
"""Every capability takes as long again."""
AMPERE = ["80"] if ALL else []
ATTENTION = {"attend_tile", "combine", "rotate_rows", "attend_latent", "write_rows"}
PRODUCTS = {"multiply_int4", "add_splits", "dequantize_strips", "multiply_groups", "dequantize_groups"}
"""With weights of few bits."""


def compiled(*capabilities: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.compiled", *capabilities],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=880,
    )


@pytest.mark.timeout(900)
def test_every_kernel_becomes_machine_code() -> None:
    """What Triton has compiled before, of the same sources, it takes from its cache."""
    answer = compiled("90", *AMPERE)
    assert answer.returncode == 0, answer.stderr
    lines = [line.split() for line in answer.stdout.splitlines()]
    found = [line[1] for line in lines]
    sampling = {"count_tokens", "penalize_rows", "draw_parts", "draw_rows"}
    products = PRODUCTS | {"quantize_rows", "scale_rows"}
    mixtures = {"select_experts", "sort_few_pairs", "count_pairs", "place_pairs"}
    mixtures |= {"multiply_tiles", "multiply_tiles_int4", "multiply_tiles_groups"}
    others = {"norm_rows", "gate_rows", "copy_blocks"}
    assert set(found) == ATTENTION | sampling | products | mixtures | others
    # Large tiles of experts of 4 bits are faster than small ones, though they spill.
    spills = {"multiply_tiles_int4": 80, "draw_rows": 48}
    for line in lines:
        most = spills.get(line[1], 0)
        ampere = line[0] == "80" and "int4" not in line[1]
        assert ampere or int(line[4]) <= most, f"beside the registers: {line}"
    assert found.count("attend_tile") == 14 * (2 if AMPERE else 1)
    # What a decode of 64 or 128 positions, or of 32 rows, may take while they are read: docs/gpu.md.
    for kernel, limits in {"attend_tile": (400, 800, 640), "attend_latent": (710, 890, 770)}.items():
        loops = [int(line[5]) for line in lines if line[:2] == ["90", kernel] and line[5] != "-"]
        assert all(0 < loop <= most for loop, most in zip(loops, limits, strict=True)), (kernel, loops)


@pytest.mark.skipif(not ALL, reason="it compiles for minutes (TEST_INTERPRETED=1)")
@pytest.mark.timeout(900)
def test_what_takes_most_fits_into_other_gpus() -> None:
    """Ada has less shared memory than those that tilings are measured on, Blackwell has tensor memory."""
    answer = compiled("89", "100")
    assert answer.returncode == 0, answer.stderr
    found = [tuple(line.split()[:2]) for line in answer.stdout.splitlines()]
    assert {kernel for _, kernel in found} == ATTENTION | PRODUCTS
    for capability in ("89", "100"):
        assert found.count((capability, "attend_latent")) == 9
