"""What the pure scheduler costs."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import number, table

Results = Mapping[str, Any]

STEP = {
    "plan_ms": "plan, ms",
    "message_ms": "its message, ms",
    "result_ms": "result taken in, ms",
    "message_bytes": "message, bytes",
}
LOOKUP = {"naming_ms": "naming the blocks", "matching_ms": "finding them", "lookup_ms": "both"}


def costs(results: Results, drawings: str) -> list[str]:
    steps = [(f"{int(rows):,}", *(one[key] for key in STEP)) for rows, one in results["steps"].items()]
    prefix = results["prefix"]
    pools = [(f"{int(size):,}", one["empty"], one["evicting"]) for size, one in _pools(results)]
    kv = results["kv"]
    return [
        "One core, no model and no queue. Medians, and in brackets the 10th and 90th of a hundred.",
        "What a step costs, by sequences that decode.",
        table(("decodes", *STEP.values()), steps),
        f"Milliseconds to look up a prefix of {prefix['tokens']:,} tokens whose blocks are all cached.",
        table(tuple(LOOKUP.values()), [tuple(prefix[key] for key in LOOKUP)]),
        "Blocks that are taken and given back each second, by the blocks of the pool: when nothing is "
        "cached, and when each of them evicts a cached one and is cached under another name.",
        table(("pool", "nothing cached", "evicting"), pools),
        f"{kv['requests']} requests, {kv['at_once']} at once, blocks of {kv['block_size']} tokens: on "
        f"average tables hold {number(kv['held_tokens_mean'])} tokens, of which "
        f"{number(kv['used_tokens_mean'])} are in use; {100 * kv['wasted_share']:.2f} % is wasted.",
    ]


def _pools(results: Results) -> list[tuple[str, Results]]:
    return sorted(results["blocks_per_second"].items(), key=lambda entry: int(entry[0]))
