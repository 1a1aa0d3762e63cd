"""What compilers make of the kernels, executed: some tests of this folder, with an emulator for a GPU.

All of them: `TEST_EMULATED=90 python -m pytest tests/unit/gpu_worker/kernels/triton` (some ten minutes).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

ATTENTION = "attention/test_attention.py::test_any_kind_of_step"
SOME = {
    "80": (
        f"{ATTENTION}[drafts-dtype1-int8]",
        f"{ATTENTION}[decodes-dtype1-fp8]",
        "products/test_int4.py::test_every_tiling[1]",
        "test_kernels.py::test_rotate_and_write_in_int8",
        "products/test_quantized.py::test_more_tokens_than_are_filled_up_and_wide_results",
    ),
    "90": (
        f"{ATTENTION}[mixed-dtype1-auto]",
        f"{ATTENTION}[decodes-dtype1-fp8]",
        "attention/test_latent.py::test_any_kind_of_step[drafts-dtype1-int8]",
        "products/test_int4.py::test_every_tiling[17]",
        "mixture/test_mixture.py::test_in_bfloat16",
        "test_asked.py",
    ),
}
"""By compute capability. dtype1 is bfloat16."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", SOME)
def test_compiled_kernels_give_what_the_reference_gives(capability: str, tmp_path: Path) -> None:
    tests = [str(FOLDER / each) for each in SOME[capability]]
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env=os.environ | {"TEST_EMULATED": capability, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert answer.returncode == 0, answer.stdout
