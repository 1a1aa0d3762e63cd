"""API keys: the keys that an operator gives to tenants, and the key that a client sends.

Keys are told apart by their SHA-256 digests. A key of 32 random bytes cannot be guessed, so its digest tells
nothing of it, and neither a salt nor a slow hash would add anything. How long a look-up takes tells nothing,
either: nobody can choose a key by the beginning of its digest.

A key file has a line `name: key` for each key; what begins with # and empty lines do not count. A tenant may
have several keys, so that one can be replaced while the other still holds.
"""

import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ops.runtime.errors import LaunchError
from ops.runtime.limits import Limits

SHORTEST = 24
"""Characters of the shortest key that an operator may choose: at random, beyond guessing."""
NAME = r"[\w.-]{1,64}"

_LINE = re.compile(rf"(?P<name>{NAME})\s*:\s*(?P<key>[!-~]+)", re.ASCII)


Right = Literal["inside", "text"]
"""inside: to look inside the deployment. text: to read there what others ask and are answered."""


class Key(BaseModel):
    """What is known of a key."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(pattern=rf"^{NAME}$")
    """For people: who has it, or what for. Several keys may have one name."""
    tenant: str = Field(pattern=rf"^{NAME}$")
    """On whose behalf its holder asks. A tenant may have several keys."""
    created: float = 0
    """Unix time. Seconds."""
    expires: float | None = None
    """Unix time from which on it is refused; None: never. Seconds."""
    rights: frozenset[Right] = frozenset()
    """What it may do besides asking the models."""
    limits: Limits = Limits()
    """Those that were given replace the deployment's."""


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
        if len(found["key"]) < SHORTEST:
            raise KeyFileError(f"{path}, line {number}: a key must have at least {SHORTEST} characters")
        if found["key"] in names:
            raise KeyFileError(f"{path}, line {number}: this key has been given before")
        names[found["key"]] = found["name"]
    if not names:
        raise KeyFileError(f"{path}: holds no key")
    return names


def new_secret() -> str:
    """A key that nobody has had before."""
    return f"sk-quire-{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> str:
    """The SHA-256 digest by which a key is known. Hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


def authorization(key: str | None = None) -> dict[str, str]:
    """A header with the key: by default that in `OPENAI_API_KEY`, where the openai package looks, too.

    Raises `LaunchError` if no header can have it.
    """
    if key is None:
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (key.isascii() and key.isprintable()):
            raise LaunchError("OPENAI_API_KEY is no API key: it has characters that a header cannot have")
    return {"Authorization": f"Bearer {key}"} if key else {}
