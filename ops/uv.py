"""Runs uv for the environment of this interpreter, with pip's package indexes and certificates.

    .venv/bin/python ops/uv.py pip install httpx

uv does not read pip's configuration. What the environment says in uv's own variables counts more. uv is the
one of this environment, or else the one on the path.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import which


def main() -> None:
    """Become uv."""
    uv = which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        sys.exit("ops/uv.py: there is no uv; install it with pip")
    os.execve(uv, [uv, *sys.argv[1:]], {**environment(configured()), **os.environ, "VIRTUAL_ENV": sys.prefix})


def configured() -> str:
    """pip's settings, one a line; none if there is no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def environment(listed: str) -> Mapping[str, str]:
    """uv's variables for what `pip config list` printed."""
    found: dict[str, list[str]] = {}
    # Variables of the environment, `:env:`, count more than files; both are sorted.
    for name, value in re.findall(r"^[^=]*\.([a-z-]+)=(['\"].*)$", listed, re.MULTILINE):
        found.setdefault(name, ast.literal_eval(value).split())
    variables = {
        "UV_DEFAULT_INDEX": found.get("index-url", []),
        "UV_INDEX": found.get("extra-index-url", []),
        # pip treats all indexes alike; uv would take what the first one has, in whatever version.
        "UV_INDEX_STRATEGY": ["unsafe-best-match"] if "extra-index-url" in found else [],
        "SSL_CERT_FILE": found.get("cert", []),
    }
    lists = {name: " ".join(values) for name, values in variables.items() if values}
    links = {"UV_FIND_LINKS": ",".join(found["find-links"])} if "find-links" in found else {}
    return lists | links


if __name__ == "__main__":
    main()
