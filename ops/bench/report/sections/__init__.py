"""What the report says of each kind of benchmark: a title, and paragraphs and tables in Markdown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ops.bench.record import Record
from ops.bench.report.sections import (
    anything,
    before_after,
    core,
    cpu,
    engines,
    kernels,
    mechanisms,
    processes,
    robust,
    simulate,
    step,
)

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """How the results of a benchmark are told."""

    title: str
    subject: Callable[[Results], str]
    """What was measured, for the title; may be empty."""
    tell: Callable[[Results, str], list[str]]
    """Blocks of Markdown, from the results and the folder that their drawings are in."""


KINDS: Mapping[str, Kind] = {
    "compare": Kind("Quire beside other engines", engines.subject, engines.compared),
    "in-process": Kind(
        "The chain of processes beside the engine in one", engines.subject, engines.in_process
    ),
    "serve": Kind("A server under a load", engines.subject, engines.served),
    "cpu-check": Kind("The CPU kernels by instruction set", cpu.subject, cpu.checked),
    "gpu-check": Kind("The GPU kernels", lambda _: "", anything.numbers),
    "gpu-tilings": Kind("Tilings of attention on a GPU", lambda _: "", anything.numbers),
    "gpu-start": Kind("How a worker starts on a GPU", lambda _: "", anything.numbers),
    "step": Kind("One step, by part", engines.subject, step.by_part),
    "mechanisms": Kind("Each mechanism on and off", mechanisms.subject, mechanisms.on_and_off),
    "recurrent": Kind("Models with recurrent layers beside transformers", lambda _: "", anything.numbers),
    "gguf": Kind("A GGUF file beside llama.cpp", lambda results: str(results["file"]), anything.numbers),
    "predictor": Kind("Drafts of a layer for multi-token prediction", lambda _: "", anything.numbers),
    "images": Kind("Images beside transformers", lambda _: "", anything.numbers),
    "footprint": Kind("What a worker takes before it answers", engines.subject, anything.numbers),
    "formats-memory": Kind(
        "Memory while a checkpoint of each format is loaded", lambda _: "", anything.numbers
    ),
    "formats-steps": Kind("Steps with a checkpoint's own 4 bits or bytes", engines.subject, anything.numbers),
    "chain": Kind("What the processes cost", lambda _: "", processes.chain),
    "paced": Kind("What the processes carry", lambda _: "", processes.paced),
    "front": Kind("What streams cost in front of the worker", lambda _: "", anything.numbers),
    "traces": Kind("What traces cost", lambda _: "", anything.numbers),
    "watching": Kind("What metrics and recordings cost", lambda _: "", anything.numbers),
    "wire": Kind("The wire beside plain gRPC", lambda _: "", processes.wire),
    "one-redis": Kind("Where one Redis ends", lambda _: "", processes.one_redis),
    "chaos": Kind("When everything fails in turn", lambda _: "", robust.chaos),
    "soak": Kind("When it runs for long", lambda _: "", robust.soak),
    "overload": Kind("When too much is asked", lambda _: "", robust.overload),
    "hostile-grammars": Kind("When grammars are hostile", lambda _: "", robust.hostile_grammars),
    "grammars": Kind("What grammars take to compile", lambda _: "", anything.numbers),
    "schema-suite": Kind(
        "Which schemas of JSON Schema's test suite grammars follow", lambda _: "", anything.numbers
    ),
    "core": Kind("The scheduler's core", lambda _: "", core.costs),
    "simulate": Kind("Simulated deployments", simulate.subject, simulate.compared),
    "simulate-validation": Kind("How far the simulator is off", engines.subject, simulate.validated),
    "step-cost": Kind("What the simulator takes steps to cost", engines.subject, simulate.costs),
    "simulate-scale": Kind("How long the simulator takes", lambda _: "", simulate.scale),
    "before-after": Kind("A change beside the commit before it", lambda _: "", before_after.compared),
    "linear": Kind("Matrix products", lambda _: "", kernels.products),
    "attention": Kind("Attention", lambda _: "", kernels.attention),
}
"""In the order of the report. What is not here comes after, as tables of its numbers."""


def kind_of(record: Record) -> Kind:
    name = record.benchmark
    return KINDS.get(name) or Kind(name.replace("-", " ").capitalize(), engines.subject, anything.numbers)


def in_order(records: list[Record]) -> list[Record]:
    places = {name: place for place, name in enumerate(KINDS)}
    return sorted(
        records, key=lambda record: (places.get(record.benchmark, len(places)), record.benchmark, record.name)
    )
