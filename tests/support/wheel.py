"""The wheel of the repository, for tests of what is installed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("proto", "gateway", "tokenizer_svc", "scheduler_svc", "gpu_worker", "ops", "tests", "docs")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build(folder: Path) -> Path:
    """Build the wheel in an empty folder, and not in the repository, where setuptools would leave folders."""
    for name in (*SOURCES, *FILES):
        (folder / name).symlink_to(ROOT / name)
    command = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", command], cwd=folder, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
