"""API keys on disk: those of a deployment whose embedded Redis begins empty at each start.

`<state>/<port>/keys.json` holds the digests of the keys, never a key.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ops.launcher.deployments import state_directory
from ops.runtime.errors import LaunchError

_NAME = "keys.json"


def keep(port: int, records: Mapping[str, str]) -> None:
    """Write the keys of the deployment on a port, in one step.

    What root writes belongs to the account that runs the deployment, which reads it at its next start.
    """
    path = state_directory() / str(port) / _NAME
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_NAME)
    draft = Path(name)
    try:
        with os.fdopen(handle, "w") as file:
            if os.geteuid() == 0:
                owner = path.parent.stat()
                os.fchown(handle, owner.st_uid, owner.st_gid)
            json.dump(dict(records), file, indent=1)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


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
