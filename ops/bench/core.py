"""The scheduler's pure core on one core of a CPU: what planning, looking up and giving out blocks cost.

    python -m ops.bench.core        writes ops/bench/results/core.json

No model, no queue, no process but this one. Sizes are measured in turns, so that what the machine does
meanwhile hits all of them.
"""

import json
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ops.bench.command import parser
from ops.bench.load.workload import Workload
from ops.bench.record import percentile, write
from ops.bench.rig.accounting import continuous_batch, tokens
from ops.bench.rig.plans import GREEDY
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.prefix import DIGEST_BYTES, extend_chain, root
from scheduler_svc.core.request import Request
from scheduler_svc.wire import plan_to

BLOCK_SIZE = 16
STEP_TOKENS = 512
LONGEST = 2048
"""Tokens of a sequence."""
DEPTH = 2
"""Plans under way at once, as in a deployment."""
TABLE_BLOCKS = 64
"""Blocks that are taken and given back together: a table of 1024 tokens."""
TABLES = 8


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    decodes: tuple[int, ...] = (256, 1024)
    prefix_tokens: int = 32 * 1024
    pools: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    users: int = 32
    requests: int = 192
    repeats: int = 200


class Decoding:
    """A scheduler all of whose sequences decode. Prompts are of 32, 128 and 512 tokens, as in a load."""

    def __init__(self, rows: int, seed: int) -> None:
        limits = _limits(rows, 8 * rows)  # so that the last has been prefilled before the first ends
        fleet = Fleet(limits.max_step_tokens)
        self._scheduler, _ = fleet.add_worker(limits)
        self._flights: deque[StepPlan] = deque()
        for number, (question,) in enumerate(Workload().conversations(rows, seed)):
            prompt = array("i", tokens(question))
            fleet.accept(Request(str(number), prompt, max_tokens=LONGEST - len(prompt), sampling=GREEDY))
        while self.step()[0].rows.counts != (1,) * rows:  # until all have been prefilled
            pass

    def step(self) -> tuple[StepPlan, float, float]:
        """The next plan, seconds that it took to make, and seconds that an earlier one's result took."""
        started = time.perf_counter()
        plan = self._scheduler.plan()
        planned = time.perf_counter() - started
        assert plan is not None
        self._flights.append(plan)
        if len(self._flights) < DEPTH:
            return plan, planned, 0.0
        answered = self._flights.popleft()
        result = StepResult(answered.step, [0] * sum(answered.rows.samples))
        started = time.perf_counter()
        self._scheduler.complete(result)
        return plan, planned, time.perf_counter() - started


def steps(sizes: Sizes, seed: int) -> dict[str, Any]:
    """Milliseconds of a step's plan, of its message and of its result, by decoding sequences; bytes of the
    message, of which a step in which every sequence gets a block has most."""
    running = {rows: Decoding(rows, seed) for rows in sizes.decodes}
    times: dict[int, dict[str, list[float]]] = {
        rows: {"plan_ms": [], "message_ms": [], "result_ms": []} for rows in running
    }
    lengths: dict[int, list[int]] = {rows: [] for rows in running}
    for _ in range(sizes.repeats):
        for rows, decoding in running.items():
            plan, planned, completed = decoding.step()
            started = time.perf_counter()
            message = plan_to(plan).SerializeToString()
            encoded = time.perf_counter() - started
            for kind, seconds in zip(times[rows], (planned, encoded, completed), strict=True):
                times[rows][kind].append(1e3 * seconds)
            lengths[rows].append(len(message))
    return {
        str(rows): {kind: _spread(found) for kind, found in times[rows].items()}
        | {"message_bytes": _spread(lengths[rows])}
        for rows in running
    }


def prefix_lookup(length: int, repeats: int) -> dict[str, Any]:
    """Milliseconds to name the blocks of a prompt and to find them all cached."""
    prompt = array("i", range(length))
    blocks = length // BLOCK_SIZE
    pool = _cached(blocks, _names(prompt))
    naming, matching = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        names = _names(prompt)
        named = time.perf_counter()
        hits = pool.match(names)
        matched = time.perf_counter()
        if len(hits) != blocks:
            raise RuntimeError(f"{len(hits)} of {blocks} blocks found")
        naming.append(1e3 * (named - started))
        matching.append(1e3 * (matched - named))
    return {
        "tokens": length,
        "naming_ms": _spread(naming),
        "matching_ms": _spread(matching),
        "lookup_ms": _spread([sum(both) for both in zip(naming, matching, strict=True)]),
    }


def blocks_per_second(sizes: Sizes) -> dict[str, Any]:
    """Blocks taken and given back again each second, by the pool's size: out of an empty pool, and out of one
    that is full of cached blocks, each of which is evicted and cached under another name."""
    empty = {size: BlockPool(size) for size in sizes.pools}
    full = {size: _cached(size, _numbered(0, size)) for size in sizes.pools}
    rates: dict[int, dict[str, list[float]]] = {size: {"empty": [], "evicting": []} for size in sizes.pools}
    for repeat in range(1, sizes.repeats + 1):
        for size in sizes.pools:
            rates[size]["empty"].append(_take_and_release(empty[size], []))
            fresh = _numbered(size + repeat * TABLES * TABLE_BLOCKS, TABLES * TABLE_BLOCKS)
            rates[size]["evicting"].append(_take_and_release(full[size], fresh))
    for pool in (*empty.values(), *full.values()):
        pool.check_integrity([])
    return {str(size): {kind: _spread(each) for kind, each in rates[size].items()} for size in sizes.pools}


def _take_and_release(pool: BlockPool, names: Sequence[bytes]) -> float:
    """Blocks a second. `names`: what the blocks are cached under, if they are."""
    naming = iter(names)
    started = time.perf_counter()
    tables = [pool.allocate(TABLE_BLOCKS) for _ in range(TABLES)]
    for table in tables:
        for block, name in zip(table, naming, strict=False):
            pool.cache(block, name)
        pool.release(table)
    return TABLES * TABLE_BLOCKS / (time.perf_counter() - started)


def wasted(sizes: Sizes, seed: int) -> dict[str, float]:
    """KV memory of a load of 32, 128 and 512 tokens, in tokens: room that tables held, and what was in it."""
    conversations = Workload().conversations(sizes.requests, seed)
    questions = [question for (question,) in conversations]
    books = continuous_batch(questions, sizes.users, _limits(sizes.users, STEP_TOKENS), STEP_TOKENS, DEPTH)
    held, used = sum(books.held), sum(books.used)
    return {
        "requests": sizes.requests,
        "at_once": sizes.users,
        "block_size": BLOCK_SIZE,
        "held_tokens_mean": round(held / len(books.held), 1),
        "used_tokens_mean": round(used / len(books.used), 1),
        "wasted_share": round(1 - used / held, 4),
    }


def measure(sizes: Sizes, seed: int) -> dict[str, Any]:
    """Everything."""
    return {
        "sizes": asdict(sizes),
        "steps": steps(sizes, seed),
        "prefix": prefix_lookup(sizes.prefix_tokens, sizes.repeats),
        "blocks_per_second": blocks_per_second(sizes),
        "kv": wasted(sizes, seed),
    }


def _limits(rows: int, step_tokens: int) -> WorkerLimits:
    """Room for `rows` sequences of any length."""
    return WorkerLimits(
        num_blocks=rows * LONGEST // BLOCK_SIZE * 2,
        block_size=BLOCK_SIZE,
        max_slots=rows,
        max_model_len=LONGEST,
        max_step_tokens=step_tokens,
        vocab_size=50_000,
    )


def _names(prompt: "array[int]") -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root(""), prompt, len(prompt) // BLOCK_SIZE, BLOCK_SIZE)
    return chain


def _numbered(first: int, count: int) -> list[bytes]:
    """Names as long as real ones."""
    return [number.to_bytes(DIGEST_BYTES, "little") for number in range(first, first + count)]


def _cached(size: int, names: Sequence[bytes]) -> BlockPool:
    """A pool all of whose blocks are idle and cached, so that each can be hit or evicted."""
    pool = BlockPool(size)
    blocks = pool.allocate(size)
    for block, name in zip(blocks, names, strict=True):
        pool.cache(block, name)
    pool.release(blocks)
    return pool


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Of all repeats; the middle eight tenths of them."""
    found = {f"p{share}": percentile(list(values), share / 100) for share in (10, 50, 90)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def main() -> None:
    command = parser(__doc__, "core.json")
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    results = measure(Sizes(), options.seed)
    write(options.out, "core", options.seed, results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
