"""API keys on disk: those of a deployment whose embedded Redis begins empty at each start.

`<state>/<port>/keys.json` holds the digests of the keys, never a key.
"""

import json
import os
from collections.abc import Mapping

from ops.launcher.record import state_directory
from ops.runtime.errors import LaunchError

_NAME = "keys.json"


def keep(port: int, records: Mapping[str, str]) -> None:
    """Write the keys of the deployment on a port, in one step."""
    path = state_directory() / str(port) / _NAME
    draft = path.with_suffix(".draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(dict(records), file, indent=1)
    draft.replace(path)


def kept(port: int) -> dict[str, str] | None:
    """The keys of the deployment on a port, which may all have been revoked; None if there has been none.

    Raises `LaunchError` for a file that cannot be read: without its keys the deployment would be open.
    """
    path = state_directory() / str(port) / _NAME
    try:
        records = json.loads(path.read_text())
        return {str(digest): str(record) for digest, record in records.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise LaunchError(f"{path}: the API keys cannot be read: {error}") from None
