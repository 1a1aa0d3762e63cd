"""The version is said once, in pyproject.toml, and everything else agrees with it."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def sections() -> dict[str, str]:
    """Text of each version in the changelog, in its order."""
    _, *parts = re.split(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_the_newest_section_is_of_this_version() -> None:
    versions = list(sections())
    assert versions[0] == VERSION
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(set(numbers), reverse=True)


def test_the_notes_of_the_release_are_its_section() -> None:
    notes = subprocess.run(
        ["make", "--silent", "notes"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert notes.stdout.strip() == sections()[VERSION]
    assert len(notes.stdout) > 100


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("docker-compose.yml", r"image: quire-[a-z-]+:(.+)"),
        ("gateway/app.py", r' version="(.+)"'),
        ("docs/operate.md", r"quire-([0-9.]+)-py3-none-any.whl"),
    ],
)
def test_others_have_this_version(path: str, pattern: str) -> None:
    assert set(re.findall(pattern, (ROOT / path).read_text())) == {VERSION}
