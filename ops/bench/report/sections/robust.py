"""What happens when things break, when they last, and when too much is asked."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import table

Results = Mapping[str, Any]


def chaos(results: Results, drawings: str) -> list[str]:
    deployment, tokens = results["deployment"], results["tokens"]
    kinds = [
        (what, one["times"], one["p50_s"], one["longest_s"]) for what, one in results["by_fault"].items()
    ]
    end = results["at_the_end"]
    return [
        f"{results['streams']} streams, chat and completions, greedy and seeded, for {results['minutes']} "
        f"minutes, while {results['faults']} faults happened to {deployment['tokenizer']} tokenizers, "
        f"{deployment['scheduler']} schedulers, {deployment['worker']} workers, a gateway and Redis (leases "
        f"of {deployment['lease_seconds']} s). Each answer is compared with the one before all faults. A "
        "refused request was told so before its answer began, and was asked again.",
        table(tuple(results["requests"]), [tuple(results["requests"].values())]),
        f"Of {tokens['received']:,} tokens {tokens['lost']} were lost and {tokens['repeated']} came twice. "
        f"In the end {end['pending_calls']} calls were pending, and {end['errors_logged']} errors had been "
        "logged; a scheduler whose blocks do not balance logs one.",
        "Seconds until every stream had gone on, P50 / P90 / P99, over all faults: from the fault's "
        "beginning, or from its end where only one process can do the work (the gateway and Redis). A token "
        "within a quarter of a second does not count, because it may have been on its way.",
        table(("recovery, s", "longest"), [(results["recovery_s"], results["longest_recovery_s"])]),
        "By kind of fault.",
        table(("fault", "times", "P50, s", "longest, s"), kinds),
    ]


def soak(results: Results, drawings: str) -> list[str]:
    memory, held = results["memory"], results["held"]
    figures = list(next(iter(memory.values())))
    return [
        f"{results['users']} users for {results['minutes']} minutes: short and long answers, conversations, "
        "samples, beams, embeddings, invalid requests, and clients that leave at any moment. What they did, "
        "and the statuses they got:",
        table(("", "times"), results["requests"].items()),
        "Memory that each process has alone (USS), and its slope after the warm-up.",
        table(
            ("process", *figures), [(name, *(one[each] for each in figures)) for name, one in memory.items()]
        ),
        f"What an idle deployment held, before and after: {results['left_behind']} of these count as left "
        f"behind. {results['problems']} answers were none that the load expects, or errors in a log.",
        table(("", "before", "after"), [(name, one["before"], one["after"]) for name, one in held.items()]),
    ]


def overload(results: Results, drawings: str) -> list[str]:
    loads = results["loads"]
    figures = list(next(iter(loads.values())))
    return [
        f"The gateway takes {results['capacity']} requests of {results['prompts']} prompts from one tenant "
        "at once, running and waiting. At capacity as many users ask without a pause, and "
        f"{results['answered_a_second']} requests a second are answered; then {results['times']} times as "
        "many arrive. Meanwhile another user of the tenant asks for one token now and then. Times in ms, "
        "P50 / P90 / P99.",
        table(("", *figures), [(name, *(one[each] for each in figures)) for name, one in loads.items()]),
        f"Accepted requests take {results['p99_over_capacity']} times as long at P99 as at capacity. After "
        f"the load a new request had its first token in {results['recovery_s']} s.",
        "What an idle deployment held after the overload and not before, or the other way round:",
        table(("", "before", "after"), [(name, *each) for name, each in results["grew"].items()]),
    ]


def hostile_grammars(results: Results, drawings: str) -> list[str]:
    gaps = results["gaps_ms"]
    figures = list(next(iter(gaps.values())))
    return [
        f"{results['users']} users stream answers while another sends {results['grammars']} grammars, one "
        f"after another and {results['rounds']} times, that are malformed, huge, nested or ambiguous. "
        f"{results['refused']} were refused, after {results['refusal_s']} s at most; "
        f"{results['followed']} could be followed. {len(results['problems'])} got anything else. "
        "Milliseconds between two tokens of a stream:",
        table(("", *figures), [(name, *(one[each] for each in figures)) for name, one in gaps.items()]),
        f"The longest of them is {results['extra_ms']} ms longer beside the grammars.",
        "Seconds until the slowest were refused, or had an answer:",
        table(("", "s"), [*results["until_refused_s"].items(), *results["until_answered_s"].items()]),
    ]
