"""LoRA adapters by name, as `QUIRE_LORA_MODULES` and `quire up --lora-modules` spell them."""

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAME = re.compile(r"[\w.:/-]{1,64}", re.ASCII)
MOST = 256
"""Adapters of one worker."""


def parse(text: str) -> dict[str, Path]:
    """The directories of `name=directory name2=directory2`, in their order. A path with spaces is quoted.

    Raises `ValueError` with what is wrong.
    """
    return named(shlex.split(text))


def named(texts: Iterable[str]) -> dict[str, Path]:
    """The directories of some `name=directory`. Raises `ValueError`."""
    found = dict[str, Path]()
    for text in texts:
        name, equals, directory = text.partition("=")
        if not (equals and directory and _NAME.fullmatch(name)):
            raise ValueError(
                f"'{text[:200]}' is not NAME=DIRECTORY, with a name of letters, digits and _.:/-"
            )
        if name in found:
            raise ValueError(f"two adapters are called '{name}'")
        found[name] = Path(directory)
    if len(found) > MOST:
        raise ValueError(f"{len(found)} adapters are more than {MOST}")
    return found


def written(adapters: Mapping[str, Path]) -> str:
    """As `parse` reads it."""
    return shlex.join(f"{name}={directory}" for name, directory in adapters.items())
