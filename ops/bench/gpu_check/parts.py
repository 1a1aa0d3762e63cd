"""The parts of the check, the most important first. Parts without time left are left out."""

from ops.bench.gpu_check import (
    attention,
    correct,
    fp8_groups,
    int4,
    latent,
    mixed,
    mixture,
    one_byte,
    prefill,
    sampling,
    served,
    steps,
    tilings,
    tokens,
)
from ops.bench.gpu_check.bench import Bench, measure_rates
from ops.bench.gpu_check.part import Part


def compile_kernels(bench: Bench) -> None:
    """Compile every kernel that is timed later, in several processes at once."""
    bench.compiling = True
    for part in (attention, prefill, latent, mixture, tilings):
        part.measure(bench)


PARTS = (
    Part("rates", measure_rates, 40),
    Part("kernels", correct.check, 100, shards=12),
    Part("tokens", tokens.check, 60),
    Part("steps", steps.measure, 100),
    Part("compiling", compile_kernels, 60, shards=6),
    Part("decode", attention.measure, 70),
    Part("prefill", prefill.measure, 40),
    Part("mixed steps", mixed.measure, 40),
    Part("served", served.measure, 250),
    Part("latent", latent.measure, 30),
    Part("mixture", mixture.measure, 30),
    Part("sampling", sampling.measure, 30),
    Part("steps of experts", steps.measure_mixture, 60),
    Part("one byte", one_byte.measure, 60),
    Part("fp8 in groups", fp8_groups.measure, 40),
    Part("4 bits", int4.measure, 60),
    Part("tilings", tilings.measure, 60),
)
