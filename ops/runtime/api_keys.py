"""API keys: the keys that an operator gives to tenants, and the key that a client sends.

A key file has a line `name: key` for each key; what begins with # and empty lines do not count. A tenant may
have several keys, so that one can be replaced while the other still holds.
"""

import os
import re
from pathlib import Path

_LINE = re.compile(r"(?P<name>[\w.-]{1,64})\s*:\s*(?P<key>[!-~]+)", re.ASCII)


class KeyFileError(ValueError):
    """A key file that cannot be used; the message names the line, and never a key."""


def read_keys(path: Path) -> dict[str, str]:
    """The tenant's name of each key in a file. Raises `KeyFileError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise KeyFileError(f"{path}: {reason}") from None
    names: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise KeyFileError(
                f"{path}, line {number}: must be `name: key`, the name of letters, digits and _.-"
            )
        if found["key"] in names:
            raise KeyFileError(f"{path}, line {number}: this key has been given before")
        names[found["key"]] = found["name"]
    if not names:
        raise KeyFileError(f"{path}: holds no key")
    return names


def authorization(key: str | None = None) -> dict[str, str]:
    """A header with the key: by default that in `OPENAI_API_KEY`, where the openai package looks, too."""
    if key is None:
        key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
