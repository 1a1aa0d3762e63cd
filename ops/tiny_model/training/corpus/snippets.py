"""JSON snippets: a request that gives some of the fields, and an object that repeats them."""

import json
import random
from typing import TypeAlias

from ops.tiny_model.training.corpus.cast import ANIMALS, HE, JOBS, PLACES, SHE, THINGS
from ops.tiny_model.training.corpus.grammar import expand, read_table

Fields: TypeAlias = dict[str, object]

_CITIES = read_table("lists.txt")["cities"]
_COLOURS = read_table("lists.txt")["colours"]
_LIKES = read_table("lists.txt")["fruits"] + read_table("lists.txt")["sports"]


def _person(rng: random.Random) -> tuple[str, Fields]:
    name, age, city = rng.choice(SHE + HE), rng.randint(6, 90), rng.choice(_CITIES)
    fields: Fields = {"name": name, "age": age}
    if rng.random() < 0.7:
        fields["city"] = city
    if rng.random() < 0.4:
        fields["job"] = rng.choice(JOBS).name
    if rng.random() < 0.4:
        fields["likes"] = rng.sample(_LIKES, rng.randint(1, 3))
    if rng.random() < 0.2:
        fields["married"] = rng.random() < 0.5
    named = f"a person named {name}"
    return rng.choice(("a person", named, f"{named} who is {age} years old")), fields


def _animal(rng: random.Random) -> tuple[str, Fields]:
    kind, name = rng.choice(ANIMALS), rng.choice(SHE + HE)
    fields: Fields = {"kind": kind.name, "name": name, "food": rng.choice(kind.foods)}
    if rng.random() < 0.5:
        fields["age"] = rng.randint(1, 15)
    if rng.random() < 0.3:
        fields["friends"] = rng.sample(SHE + HE, rng.randint(0, 2))
    return rng.choice((f"a {kind.name}", f"a {kind.name} named {name}")), fields


def _book(rng: random.Random) -> tuple[str, Fields]:
    kind, (thing, looks) = rng.choice(ANIMALS), rng.choice(THINGS)
    title = f"The {kind.name.capitalize()} and the {rng.choice(looks).capitalize()} {thing.capitalize()}"
    fields: Fields = {"title": title, "author": rng.choice(SHE + HE), "pages": rng.randint(4, 60) * 8}
    if rng.random() < 0.5:
        fields["available"] = rng.random() < 0.5
    return "a book", fields


def _weather(rng: random.Random) -> tuple[str, Fields]:
    city = rng.choice(_CITIES)
    sky = rng.choice(("sunny", "cloudy", "rain", "snow", "fog", "wind"))
    low = rng.randint(-10, 20)
    fields: Fields = {
        "city": city,
        "weather": sky,
        "temperature": {"low": low, "high": low + rng.randint(1, 12)},
    }
    return f"the weather in {city}", fields


def _order(rng: random.Random) -> tuple[str, Fields]:
    items = [
        {"item": thing, "colour": rng.choice(_COLOURS), "count": rng.randint(1, 9)}
        for thing, _ in rng.sample(THINGS, rng.randint(1, 3))
    ]
    fields: Fields = {"id": rng.randint(1, 999), "items": items}
    if rng.random() < 0.4:
        fields["note"] = rng.choice((None, f"deliver to {rng.choice(PLACES)}"))
    return "an order", fields


_SORTS = (_person, _person, _animal, _book, _weather, _order)
_REQUESTS = (
    "[Give|Show] me [JSON|a JSON object] for {what}.",
    "[Write|write] [JSON|a JSON object|some JSON] for {what}[.|]",
    "[Can|Could] you [describe|write] {what} [as|in] JSON?",
    "JSON for {what}[, please.|]",
    "Describe {what} as a JSON object.",
)


def snippet(rng: random.Random) -> tuple[str, str]:
    """What is described, and the JSON text: on one line, or indented by two."""
    what, fields = rng.choice(_SORTS)(rng)
    indent = 2 if rng.random() < 0.4 else None
    return what, json.dumps(fields, ensure_ascii=False, indent=indent)


def json_turn(rng: random.Random) -> tuple[str, str]:
    """ "Give me JSON for a person." """
    what, text = snippet(rng)
    return expand(rng, rng.choice(_REQUESTS), {"what": what}), text
