"""Small arithmetic and counting. Numbers stay small: the model is too."""

import random

from ops.tiny_model.training.corpus.grammar import expand

_WORDS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
    *("twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
]
_NAMES = {"+": "plus", "-": "minus", "*": "times"}
_THINGS = ("apples", "coins", "books", "shells", "pears", "stones", "buttons", "nuts", "cards", "eggs")
_PEOPLE = ("Mira", "Theo", "Zoë", "Otis", "José", "Luna", "Finn", "Ana", "Kenji", "Ivy")


def _drawn(rng: random.Random) -> tuple[int, str, int, int]:
    """Two numbers, the operator between them, the result (never negative)."""
    sign = rng.choices(("+", "-", "*"), weights=(5, 3, 2))[0]
    if sign == "*":
        left, right = rng.randint(0, 10), rng.randint(0, 10)
        return left, sign, right, left * right
    top = 20 if rng.random() < 0.8 else 99
    left, right = rng.randint(0, top), rng.randint(0, top)
    if sign == "-":
        left, right = max(left, right), min(left, right)
        return left, sign, right, left - right
    return left, sign, right, left + right


def sum_turn(rng: random.Random) -> tuple[str, str]:
    """ "What is 7 + 5?" """
    left, sign, right, result = _drawn(rng)
    shown = sign if sign != "*" else rng.choice(("*", "×"))
    if rng.random() < 0.25:
        shown = _NAMES[sign]
    asked = rng.choice(("[What is|what is|How much is|Calculate|Please compute] {sum}?", "{sum}", "{sum} ="))
    text = expand(rng, asked, {"sum": f"{left} {shown} {right}"})
    if text.startswith(("Calc", "Please")):
        text = text[:-1] + "."
    answers = (
        f"{left} {shown} {right} = {result}",
        f"{left} {shown} {right} = {result}.",
        str(result),
        f"{left} {shown} {right} is {result}.",
    )
    return text, rng.choice(answers if shown not in _NAMES.values() else answers[3:])


def told_turn(rng: random.Random) -> tuple[str, str]:
    """A sum dressed as a little story."""
    left, right = rng.randint(2, 12), rng.randint(1, 9)
    who, other = rng.sample(_PEOPLE, 2)
    thing = rng.choice(_THINGS)
    if rng.random() < 0.5 or right >= left:
        return (
            f"{who} has {left} {thing}. {other} gives {who} {right} more. How many {thing} does {who} have?",
            f"{who} has {left} + {right} = {left + right} {thing}.",
        )
    return (
        f"{who} has {left} {thing} and gives {right} of them to {other}. How many {thing} are left?",
        f"{who} has {left} - {right} = {left - right} {thing} left.",
    )


def count_turn(rng: random.Random) -> tuple[str, str]:
    """Counting up, down, in steps, in words."""
    style = rng.choice(("up", "up", "down", "twos", "words"))
    if style == "words":
        top = rng.randint(3, 20)
        asked = f"Count to {_WORDS[top]} in words."
        return asked, ", ".join(_WORDS[1 : top + 1]).capitalize() + "."
    if style == "twos":
        step, amount = rng.choice((2, 3, 5, 10)), rng.randint(4, 10)
        return f"Count in steps of {step} up to {step * amount}.", ", ".join(
            str(step * i) for i in range(1, amount + 1)
        )
    start = 1 if rng.random() < 0.6 else rng.randint(2, 30)
    end = start + rng.randint(3, 15)
    numbers = [str(number) for number in range(start, end + 1)]
    if style == "down":
        return f"Count down from {end} to {start}.", ", ".join(reversed(numbers))
    asked = f"Count to {end}." if start == 1 else f"Count from {start} to {end}."
    return expand(rng, rng.choice((asked, "Please c" + asked[1:])), {}), ", ".join(numbers)


def sum_table(rng: random.Random) -> str:
    """A plain page of sums, one a line."""
    lines = []
    for _ in range(rng.randint(5, 14)):
        left, sign, right, result = _drawn(rng)
        lines.append(f"{left} {sign} {right} = {result}")
    return "\n".join(lines)
