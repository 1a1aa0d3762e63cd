"""The declarations of `sampling.proto`: the range, the default and the stage of each parameter.

Gateway, tokenizer, scheduler and worker check against what is read here: a new parameter is declared once.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from proto import sampling_pb2
from proto.sampling_pb2 import BeamSearch, Dry, SamplingParams, StopConditions, TokenRules

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_UINT32_MAX = 2**32 - 1
_LEAST = 1e-30
"""The lowest number above 0 that `nearest` gives. It is not 0 as a float32 either."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a parameter may have."""

    low: float
    high: float
    above: bool = False
    """`low` itself is outside."""

    def __contains__(self, value: float) -> bool:
        """False for NaN."""
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        """As in "must be in [0, 1]", without the "must be"."""
        if self.high == _UINT32_MAX:
            return f"at least {self.low}"
        if self.high == _FLOAT32_MAX:
            return f"{'above' if self.above else 'at least'} {_written(self.low)}, and finite"
        return f"in {'(' if self.above else '['}{_written(self.low)}, {_written(self.high)}]"

    @property
    def lowest(self) -> float:
        """The lowest number inside."""
        return math.nextafter(self.low, math.inf) if self.above else self.low

    def nearest(self, value: float) -> float:
        """The number inside that is nearest to `value`, and remains inside as a float32."""
        low = self.low + max(_LEAST, abs(self.low) * 2**-22) if self.above else self.low
        return min(max(value, low), self.high)


@dataclass(frozen=True, slots=True)
class Parameter:
    """The declaration of one parameter."""

    name: str
    """Of the field, and what clients call it."""
    whole: bool
    """An integer; otherwise a float32."""
    stage: int
    """One of `Stage`."""
    default: float | None
    """Where neither the client nor the model gives a value; None: the gateway decides."""
    range: Range
    """What services accept from each other."""
    client: Range
    """What the gateway accepts from clients."""
    model: Range | None
    """What a model's generation_config.json may give; None: that file has no say."""


class Problem(NamedTuple):
    """A parameter that is out of its range."""

    name: str
    message: str
    """A sentence with the parameter, its value and its range."""


_OPTION = cast(Any, sampling_pb2.parameter)  # the stubs do not know of extensions
_MESSAGES: tuple[type[Message], ...] = (SamplingParams, TokenRules, Dry, StopConditions, BeamSearch)


def _parameters() -> Iterator[Parameter]:
    for message in _MESSAGES:
        for field in message.DESCRIPTOR.fields:
            options = field.GetOptions()
            if options.HasExtension(_OPTION):
                yield _parameter(field, options.Extensions[_OPTION])


def _parameter(field: Any, declared: Any) -> Parameter:
    whole = field.type != FieldDescriptor.TYPE_FLOAT
    widest = Range(0, _UINT32_MAX) if whole else Range(-_FLOAT32_MAX, _FLOAT32_MAX)
    accepted = _range(declared.range, widest)
    # A value at a bound becomes a float32 on its way, and so must the bound.
    as_sent = replace(accepted, low=_float32(accepted.low), high=_float32(accepted.high))
    return Parameter(
        name=field.name,
        whole=whole,
        stage=declared.stage,
        default=(_number if whole else float)(declared.default) if declared.HasField("default") else None,
        range=accepted if whole else as_sent,
        client=_range(declared.client, accepted),
        model=_range(declared.model, accepted) if declared.HasField("model") else None,
    )


def _range(declared: Any, others: Range) -> Range:
    """The declared bounds, and those of `others` where there are none."""
    low, above = others.low, others.above
    for name in ("min", "above"):
        if declared.HasField(name):
            low, above = _number(getattr(declared, name)), name == "above"
    return Range(low, _number(declared.max) if declared.HasField("max") else others.high, above)


def _number(value: float) -> float:
    return int(value) if value == int(value) else value


def _float32(value: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return _number(rounded)


def _written(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.7g}"


PARAMETERS: Mapping[str, Parameter] = MappingProxyType({found.name: found for found in _parameters()})
"""By name, in the order of the contract."""

STAGED: tuple[Parameter, ...] = tuple(each for each in PARAMETERS.values() if each.stage)
"""The parameters that influence which token is chosen: penalties, temperature and filters."""

MAX_SEQUENCES = int(PARAMETERS["beam_width"].range.high)
"""Sequences that one request may have: beams, or the `n` or `best_of` sequences that are sampled."""

MAX_BIAS = 100.0
"""Bounds of what is added to a logit: from -MAX_BIAS on, up to MAX_BIAS."""
MAX_BIASES = 1024
"""Tokens of one request that may have a bias."""
MAX_ALLOWED = 4096
"""Tokens that one request may name as allowed."""
MAX_END_TOKENS = 1024
"""Tokens of one request that may end it."""
MAX_BAD_TOKENS = 8192
"""Tokens that the bad words of one request may have together."""
MAX_BREAKERS = 65_536
"""Tokens that the breakers of one request may have together."""


_CHECKS = {
    message: [
        (name, PARAMETERS[name].range.lowest, PARAMETERS[name].range.high)
        for name in message.DESCRIPTOR.fields_by_name
        if name in PARAMETERS
    ]
    for message in _MESSAGES
}


def problem_in(message: SamplingParams | TokenRules | Dry | StopConditions | BeamSearch) -> Problem | None:
    """The first parameter that is out of its range, or what is wrong with the rules."""
    for name, lowest, highest in _CHECKS[type(message)]:
        value = getattr(message, name)
        if not lowest <= value <= highest:  # so is NaN
            sentence = f"{name} must be {PARAMETERS[name].range}, but is {_written(value)}"
            return Problem(name, sentence)
    if isinstance(message, SamplingParams) and message.HasField("rules"):
        return problem_in(message.rules)
    return _problem_in_rules(message) if isinstance(message, TokenRules) else None


def _problem_in_rules(rules: TokenRules) -> Problem | None:
    biased, biases = rules.biased_tokens, rules.biases
    if len(biased) > MAX_BIASES or len(biased) != len(biases) or len(set(biased)) < len(biased):
        return Problem("logit_bias", f"logit_bias must name up to {MAX_BIASES} tokens once, with a bias each")
    if not all(-MAX_BIAS <= bias <= MAX_BIAS for bias in biases):
        return Problem("logit_bias", f"logit_bias must be in [{-MAX_BIAS:g}, {MAX_BIAS:g}]")
    for name, field, most in (
        ("allowed_token_ids", rules.allowed_tokens, MAX_ALLOWED),
        ("min_tokens", rules.end_tokens, MAX_END_TOKENS),
    ):
        if len(field) > most:
            return Problem(name, f"{name} must have at most {most} tokens, but has {len(field)}")
    lengths = [len(word.tokens) for word in rules.bad_words]
    if lengths and (min(lengths) < 1 or sum(lengths) > MAX_BAD_TOKENS):
        return Problem("bad_words", f"bad_words must have 1 to {MAX_BAD_TOKENS} tokens")
    return _problem_in_dry(rules.dry) if rules.HasField("dry") else None


def _problem_in_dry(dry: Dry) -> Problem | None:
    if problem := problem_in(dry):
        return problem
    name, lengths = "dry_sequence_breakers", [len(each.tokens) for each in dry.breakers]
    if min(lengths, default=2) < 2:
        return Problem(name, f"{name} must have several tokens, or be among `breaker_tokens`")
    if (count := sum(lengths) + len(dry.breaker_tokens)) > MAX_BREAKERS:
        return Problem(name, f"{name} must stand for at most {MAX_BREAKERS} tokens, but stand for {count}")
    return None


def greedy(**others: Any) -> SamplingParams:
    """Every parameter at its default, except for temperature 0 and what is given in `others`."""
    defaults = {each.name: each.default for each in STAGED}
    return SamplingParams(**{**defaults, "temperature": 0, **others})
