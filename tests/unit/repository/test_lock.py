"""`constraints.txt` locks all that `pyproject.toml` asks for, with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
APART = {"torch", "triton"}
"""Whose builds the Makefile and the Dockerfile choose."""


def locked() -> dict[str, tuple[Requirement, int]]:
    """Every requirement in the lock by its name, and the number of its hashes."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    entries = re.findall(r"^(\S.*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert "".join(f"{one} \\\n{hashes}" for one, hashes in entries) == text, "nothing else is in it"
    requirements = [(Requirement(one), hashes.count("sha256:")) for one, hashes in entries]
    return {canonicalize_name(one.name): (one, hashes) for one, hashes in requirements}


def asked() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [one for one in map(Requirement, texts) if one.name not in {PROJECT["name"], *APART}]


@pytest.mark.parametrize("requirement", asked(), ids=lambda requirement: str(requirement.name))
def test_what_is_asked_for_is_locked_in_a_version_that_will_do(requirement: Requirement) -> None:
    entry, _ = locked()[canonicalize_name(requirement.name)]
    (pin,) = entry.specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version, prereleases=True)


def test_builds_that_are_chosen_elsewhere_are_not_locked() -> None:
    assert not APART & locked().keys()
    assert not [name for name in locked() if name.startswith(("nvidia-", "cuda-"))]


def test_wheels_for_several_systems_are_locked() -> None:
    """A lock that was made from the wheels of one machine has few hashes where there are many files."""
    assert {name: locked()[name][1] > 20 for name in ("grpcio", "numpy", "pyyaml", "regex")} == dict.fromkeys(
        ("grpcio", "numpy", "pyyaml", "regex"), True
    )
