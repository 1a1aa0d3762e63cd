"""What can be read off a kernel's machine code, with the tools that Triton brings."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes that it keeps in memory for want of them."""
    said = _dump(cubin, "--dump-resource-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def multiplying_loop(cubin: bytes) -> int:
    """Instructions of the shortest loop that multiplies matrices; 0 if there is none.

    A processor has four schedulers, each of which starts an instruction of a warp in a cycle at most.
    """
    found = re.finditer(r"/\*([0-9a-f]{4,})\*/\s+(.*?);\s*/\*", _dump(cubin, "--dump-sass"))
    code = [(int(match[1], 16), match[2]) for match in found]
    places = {address: place for place, (address, _) in enumerate(code)}
    sizes = []
    for place, (address, instruction) in enumerate(code):
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", instruction)
        begin = places.get(int(jump[1], 16)) if jump else None
        if begin is None or code[begin][0] >= address:
            continue
        loop = [text for _, text in code[begin : place + 1]]
        if any(re.search(r"\bHG?MMA\b", text) for text in loop):
            sizes.append(len(loop))
    return min(sizes, default=0)


def _dump(cubin: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"  # it calls the disassembler beside it
        command = [str(TOOLS / "cuobjdump"), what, file.name]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PATH": path}
        ).stdout
