"""Whether the packages that a deployment on this machine needs are installed."""

from collections.abc import Sequence
from importlib.util import find_spec

from ops.runtime.errors import UsageError

NEEDED = (
    *("fastapi", "uvicorn", "tokenizers", "jinja2", "llguidance", "PIL"),
    *("torch", "safetensors", "transformers"),
)
"""One or more of each service's packages, by the name under which they are imported."""

HINT = "pip install 'quire[all]' installs all that `quire` needs, 'quire[bench]' what `quire bench` does, too"


def check_installed(packages: Sequence[str] = NEEDED) -> None:
    """Raise `UsageError`, in one line, if packages are missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(f"not installed: {', '.join(missing)}; {HINT}")
