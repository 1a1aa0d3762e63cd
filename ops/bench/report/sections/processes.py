"""What it costs that Quire is several processes."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from ops.bench.report.markdown import cell, number, spread, table

Results = Mapping[str, Any]

TRANSPORTS = {"redis": "Redis Streams", "grpc": "grpc.aio"}
MEASUREMENTS = {
    "unary": "one call after the other",
    "steps": "256 streams, a message each every 20 ms",
    "flood": "256 streams, as fast as they can",
}
FIGURES = {
    "p50_ms": "P50, ms",
    "p99_ms": "P99, ms",
    "cpu_us_per_call": "CPU, µs a call",
    "cpu_us_per_message": "CPU, µs a message",
    "messages_per_cpu_second": "messages a CPU-second",
    "messages_per_second": "messages a second",
}
RATIOS = {
    "unary_p50": "one call after the other: P50",
    "steps_messages_per_cpu_second": "a message each every 20 ms: messages a CPU-second",
    "flood_messages_per_cpu_second": "as fast as they can: messages a CPU-second",
}
FIRST_TOKEN = {"the chain": "chain_ms", "the step alone": "bare_step_ms"}


def chain(results: Results, drawings: str) -> list[str]:
    first, cpu = results["first_token"], results["cpu"]
    spent = cpu["cpu_us_per_token"]
    return [
        f"Milliseconds to the first token of {first['prompt_tokens']} tokens of prompt on an idle machine, "
        "over HTTP, and of the model's step alone in a process of its own: the median, and in brackets the "
        f"10th and the 90th of a hundred. The chain adds {first['above_bare_step_p50_ms']} ms.",
        table(("", "ms"), [(name, first[key]) for name, key in FIRST_TOKEN.items()]),
        f"CPU time of a token in each process, µs, with {cpu['concurrency']} requests at once (prompts of "
        f"{cell(cpu['prompt_lengths'])} tokens): outside the worker "
        f"{cpu['cpu_us_per_token_outside_worker']} in all.",
        table(tuple(spent), [tuple(spent.values())]),
        "What the users of that load had; times are P50 / P90 / P99.",
        table(
            ("output tokens/s", "time to the first token, ms", "time between tokens, ms"),
            [(cpu["output_rate"], cpu["first_token_ms"], cpu["between_tokens_ms"])],
        ),
    ]


def paced(results: Results, drawings: str) -> list[str]:
    blocks = [
        "The worker does all its work but the model's: in place of computing a step it waits for a given "
        "time. So this is how many tokens all processes and their clients can carry on this machine, and "
        f"what a token costs where many come at once. Prompts of {results['prompt_tokens']} tokens, answers "
        f"of {results['answer_tokens']}; the device's rate is one token a step for each user."
    ]
    for step, loads in results["by_step_ms"].items():
        processes = tuple(loads[0]["cpu_us_per_token"])
        rows = [
            (
                load["concurrency"],
                load["output_rate"],
                load["of_the_device"],
                load["between_tokens_ms"],
                *load["cpu_us_per_token"].values(),
            )
            for load in loads
        ]
        blocks += [
            f"A device that takes {step} ms a step; time between tokens in ms, P50 / P90 / P99; CPU of each "
            "process in µs a token.",
            table(
                ("at once", "output tokens/s", "of the device's rate", "time between tokens", *processes),
                rows,
            ),
        ]
    return blocks


def wire(results: Results, drawings: str) -> list[str]:
    rounds = results["rounds"]
    rows = [
        (
            MEASUREMENTS.get(name, name),
            FIGURES.get(figure, figure),
            *(median(one[figure] for one in by_transport[transport]) for transport in TRANSPORTS),
        )
        for name, by_transport in rounds.items()
        for figure in by_transport["redis"][0]
    ]
    ratios = [(RATIOS.get(name, name), spread(ratio)) for name, ratio in results["ratios"].items()]
    return [
        "The same stubs and servicers over both transports, in turns; the CPU time is that of all processes, "
        "Redis included. Medians of the rounds.",
        table(("", "figure", *TRANSPORTS.values()), rows),
        "Redis Streams over grpc.aio, round by round: median, lowest and highest.",
        table(("", "ratio"), ratios),
    ]


def one_redis(results: Results, drawings: str) -> list[str]:
    levels = [
        (
            f"{batch}, {found['entry_bytes']} bytes",
            *(level[name] for name in ("pairs", "entries_per_second", "messages_per_second")),
            *(
                level[name]
                for name in ("megabytes_per_second", "busy", "cpu_us_per_entry", "entries_per_read")
            ),
        )
        for batch, found in results["by_batch"].items()
        for level in found["levels"]
    ]
    limits = [
        (
            batch,
            *(found["limit"][name] for name in ("entries_per_second", "megabytes_per_second")),
            *(found["limit"][name] for name in ("steps_per_second", "tokens_per_second")),
        )
        for batch, found in results["by_batch"].items()
    ]
    return [
        "Pairs of processes pass entries on through one Redis, each entry with a message for each sequence "
        "of a step. One thread of Redis executes all commands: busy is the share of a core that it takes.",
        table(
            (
                "messages of an entry",
                "pairs",
                "entries/s",
                "messages/s",
                "MB/s",
                "busy",
                "µs an entry",
                "a read",
            ),
            levels,
        ),
        "What one Redis carries when it is busy all the time, by what an entry costs at the busiest level. A "
        f"step is {results['entries_a_step']} entries if there is one process of each kind: plan, result, "
        "tokens, text.",
        table(("sequences of a step", "entries/s", "MB/s", "steps/s", "tokens/s"), limits),
        f"A call costs Redis {number(results['cpu_us_per_call'])} µs, and a request is "
        f"{results['calls_a_request']} calls: {number(results['requests_per_second'])} requests a second, if "
        "Redis had nothing else to do.",
    ]
