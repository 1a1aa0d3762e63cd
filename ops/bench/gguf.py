"""A GGUF file beside llama.cpp: milliseconds between tokens, and of a prompt.

`python -m ops.bench.gguf FILE --peer PYTHON` takes any file that both read. PYTHON has the package
`llama-cpp-python`, or `ik-llama-cpp-python` with `--bindings ik_llama_cpp`. Quire is the scheduler's core and
the worker in this process, and llama.cpp a static batch without a server. The two take turns.
"""

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from gpu_worker.machine.cores import usable
from ops.bench.command import RESULTS, parser
from ops.bench.engines.competitors import peer_environment
from ops.bench.engines.peers.llama_server import MODULES
from ops.bench.record import write
from ops.bench.recurrent import LONG, PROMPT, STEPS, USERS, in_turns
from ops.bench.rig.on_cpu import load_on_cpu
from ops.model_directory.gguf.directory import as_directory

ROOT = Path(__file__).parents[2]


def peer(python: str, bindings: str, file: Path, seed: int) -> dict[str, float]:
    """Milliseconds of llama.cpp's."""
    sizes = {"prompt": PROMPT, "long": LONG, "steps": STEPS, "seed": seed, "threads": len(usable())}
    given = [f"--{name}={number}" for name, number in sizes.items()]
    module = [python, "-m", "ops.bench.engines.peers.llama_steps"]
    users = ["--users", *map(str, USERS)]
    done = subprocess.run(
        [*module, "--bindings", bindings, "--model", str(file.resolve()), *given, *users],
        cwd=ROOT,
        env=peer_environment(len(usable())),
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(file: Path, python: str, bindings: str, rounds: int, seed: int) -> dict[str, Any]:
    """Of llama.cpp: see `in_turns`."""
    runner = load_on_cpu(as_directory(file), kv_memory=2 << 30)
    return in_turns(runner, bindings, partial(peer, python, bindings, file), rounds, seed)


def main() -> None:
    command = parser(__doc__)
    command.add_argument("file", type=Path)
    command.add_argument("--peer", required=True, help="a Python that has llama.cpp's bindings")
    command.add_argument("--bindings", choices=MODULES, default="llama_cpp")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    name = options.file.stem
    found = compare(options.file, options.peer, options.bindings, options.rounds, options.seed)
    for what, each in found.items():
        print(what, each)
    out = options.out or RESULTS / f"gguf-{name}.json"
    results = {"file": name, "MB": round(options.file.stat().st_size / 1e6), "milliseconds": found}
    write(out, "gguf", options.seed, results)


if __name__ == "__main__":
    main()
