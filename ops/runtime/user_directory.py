"""Where files of a user are: `$XDG_STATE_HOME/quire`, `$XDG_CACHE_HOME/quire`, or below the home."""

import os
from pathlib import Path

NOWHERE = Path("/nonexistent")
"""Home of users who have none, as Debian names it. Nothing can be kept there."""


def user_directory(variable: str, default: str) -> Path:
    """The directory that a variable of the environment names, or `default` in the user's home.

    A path that is not absolute is ignored, as the XDG specification has it.
    """
    base = Path(os.environ.get(variable) or "")
    return (base if base.is_absolute() else _home() / default) / "quire"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # in a container, of a user without a name
        return NOWHERE
