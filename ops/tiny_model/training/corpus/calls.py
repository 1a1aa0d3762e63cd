"""Conversations in which functions are offered: a question, the call that answers it, its result, a sentence.

A closed world: the functions of calls.txt, whose arguments come out of short lists. A message is written as
the chat template writes it, so that a conversation is rendered like any other.
"""

import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ops.tiny_model.training.corpus.cast import HE, PLACES, SHE, THINGS
from ops.tiny_model.training.corpus.grammar import expand, read_sections, read_table
from ops.tiny_model.training.corpus.lists import language_turn, list_turn, opposite_turn
from ops.tiny_model.training.corpus.stories import draw_story
from ops.tiny_model.training.corpus.talk import Message, fact_turn

_TABLE = read_table("lists.txt")
_CITIES = [city for city in _TABLE["cities"] if " " not in city]
_SMALL = [str(number) for number in range(1, 13)]
LISTS: Mapping[str, list[str]] = {
    "cities": _CITIES,
    "numbers": _SMALL,
    "names": SHE[:16] + HE[:16],
    "things": [thing for thing, _ in THINGS if " " not in thing],
    "animals": _TABLE["animals"],
}
"""What the arguments of functions may be."""

OFFER = "You can call:"
"""Before the list of functions."""
RESULT = "Result: "
"""Before the result of a call."""
NONE_FITS = "I have no function for that."
_SYSTEMS = ("You are a helpful assistant.", "Be kind and brief.", "Answer in simple English.")
_HELD_OUT_SHARE = 20
_RESULTS: Mapping[str, Callable[[random.Random, Mapping[str, str]], str]] = {
    "get_weather": lambda rng, _: rng.choice(("sunny", "cloudy", "rain", "snow", "fog", "wind")),
    "get_time": lambda rng, _: f"{rng.randint(1, 12)} o'clock",
    "add": lambda _, values: str(int(values["a"]) + int(values["b"])),
    "find_friend": lambda rng, _: rng.choice(PLACES),
    "get_age": lambda rng, _: str(rng.randint(6, 90)),
    "find_home": lambda rng, _: rng.choice(PLACES),
}
"""Results of functions; the others' is "done"."""


@dataclass(frozen=True)
class Function:
    """A function of calls.txt."""

    name: str
    arguments: Mapping[str, str]
    """Argument -> name of the list of its values."""
    questions: list[str]
    answers: list[str]

    def kind(self, argument: str) -> str:
        """The argument's JSON Schema type."""
        return "integer" if self.arguments[argument] == "numbers" else "string"

    def offered(self) -> dict[str, Any]:
        """The function as clients send it."""
        properties = {name: {"type": self.kind(name)} for name in self.arguments}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        parameters = schema | {"additionalProperties": False}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}

    def line(self) -> str:
        """The function as the chat template shows it: the call that it takes."""
        return json.dumps(
            {"name": self.name, "arguments": {name: self.kind(name) for name in self.arguments}}
        )


@dataclass(frozen=True)
class Call:
    """A question and everything that follows from it."""

    function: Function
    question: str
    arguments: dict[str, str | int]
    result: str
    answer: str

    @property
    def text(self) -> str:
        """The call as the model writes it."""
        call = {"name": self.function.name, "arguments": self.arguments}
        return json.dumps([call], ensure_ascii=False)

    @property
    def held_out(self) -> bool:
        """This question, with these values, is never trained on."""
        return zlib.crc32(self.question.encode()) % _HELD_OUT_SHARE == 0


def _read() -> list[Function]:
    functions = []
    for name, (arguments, questions, answers) in read_sections("calls.txt").items():
        lists = dict(line.split(": ") for line in arguments)
        functions.append(Function(name, lists, questions, answers))
    return functions


FUNCTIONS = _read()


def _drawn(rng: random.Random, function: Function) -> Call:
    values: dict[str, str] = {}
    for name, listed in function.arguments.items():
        values[name] = rng.choice([each for each in LISTS[listed] if each not in values.values()])
    question = expand(rng, rng.choice(function.questions), values)
    result = _RESULTS[function.name](rng, values) if function.name in _RESULTS else "done"
    answer = expand(rng, rng.choice(function.answers), values | {"result": result})
    typed = {name: int(v) if function.kind(name) == "integer" else v for name, v in values.items()}
    return Call(function, question, typed, result, answer)


def draw_call(rng: random.Random, function: Function, held_out: bool = False) -> Call:
    """A question that this function answers."""
    while (call := _drawn(rng, function)).held_out != held_out:
        pass
    return call


def offer(rng: random.Random, functions: list[Function]) -> Message:
    """The functions as a system message, now and then behind another one."""
    text = "\n".join((OFFER, *(function.line() for function in functions)))
    if rng.random() < 0.15:
        text = f"{rng.choice(_SYSTEMS)}\n\n{text}"
    return {"role": "system", "content": text}


def _other_turn(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.25:
        story = draw_story(rng)
        return story.request, story.text
    return rng.choice((fact_turn, fact_turn, list_turn, language_turn, opposite_turn))(rng)


def calls(rng: random.Random) -> Iterator[Message]:
    """A conversation under one to four functions, without end."""
    offered = rng.sample(FUNCTIONS, rng.choice((1, 2, 2, 3, 3, 4)))
    yield offer(rng, offered)
    while True:
        drawn = rng.random()
        if drawn < 0.14:
            asked, answered = _other_turn(rng)
        elif drawn < 0.26:
            other = rng.choice([function for function in FUNCTIONS if function not in offered])
            asked, answered = draw_call(rng, other).question, NONE_FITS
        else:
            call = draw_call(rng, rng.choice(offered))
            yield {"role": "user", "content": call.question}
            yield {"role": "assistant", "content": call.text}
            asked, answered = RESULT + call.result, call.answer
        yield {"role": "user", "content": asked}
        yield {"role": "assistant", "content": answered}


def held_out_questions(seed: int) -> Iterator[tuple[list[Message], Call]]:
    """Conversations that end with a question never trained on, and the call that it asks for, without end."""
    rng = random.Random(seed)
    while True:
        offered = rng.sample(FUNCTIONS, rng.randint(1, 4))
        call = draw_call(rng, rng.choice(offered), held_out=True)
        yield [offer(rng, offered), {"role": "user", "content": call.question}], call
