"""Who and what a story is about: a hero, a friend, a thing, places, weather, as slots for the grammar."""

import random
from dataclasses import dataclass

from ops.tiny_model.training.corpus.grammar import read_sections

_WORDS = {name: beats[0] for name, beats in read_sections("words.txt").items()}


def words(name: str, separator: str = ", ") -> list[str]:
    """One of the word lists that are written on a single line."""
    return _WORDS[name][0].split(separator)


@dataclass(frozen=True)
class Kind:
    """A sort of hero: a fox, a baker, a dragon."""

    name: str
    looks: list[str]
    homes: list[str]
    foods: list[str]
    features: list[str]


def _kinds(name: str) -> list[Kind]:
    rows = [line.split(" ; ") for line in _WORDS[name]]
    return [Kind(row[0], *(column.split(", ") for column in row[1:])) for row in rows]


ANIMALS = _kinds("animals")
FANCY = _kinds("fancy")
JOBS = _kinds("jobs")
# Heroes of whom the corpus knows nothing but the word: they teach the model to take up the asker's word.
EXTRA = [
    Kind(
        name,
        ["small", "young", "old", "curious", "clever", "lonely", "kind", "brave"],
        ["a quiet corner of the village", "a place by the river", "a house behind the hill", "a far country"],
        ["bread", "soup", "apples", "honey", "cake", "berries"],
        ["good heart", "quiet voice", "loud laugh", "quick mind", "shiny nose"],
    )
    for name in words("extra")
]
THINGS = [(line.split(" ; ")[0], line.split(" ; ")[1].split(", ")) for line in _WORDS["things"]]
SHE, HE = words("she"), words("he")
PLACES = words("places")
MORALS = words("morals", " | ")
WEATHER = [sentence.strip(".") + "." for sentence in words("weather", ". ")]
EMOJI = words("emoji", " ")
_ALWAYS_SHE, _ALWAYS_HE = words("always_she"), words("always_he")
_HOMES_ON = tuple(words("homes_on"))
_BAD_MOODS = words("bad_moods")


def any_kind(rng: random.Random) -> Kind:
    """Mostly animals: they are what people ask a small model for."""
    return rng.choice(rng.choices((ANIMALS, JOBS, FANCY, EXTRA), weights=(6, 3, 2, 4))[0])


def _pronouns(rng: random.Random, kind: Kind, prefix: str) -> tuple[str, dict[str, str]]:
    """A first name and the pronouns that go with it, as slots "he", "him", ... after the prefix."""
    she = kind.name in _ALWAYS_SHE or (kind.name not in _ALWAYS_HE and rng.random() < 0.5)
    forms = ("she", "her", "her", "herself") if she else ("he", "him", "his", "himself")
    slots = {prefix + key: form for key, form in zip(("he", "him", "his", "himself"), forms, strict=True)}
    if prefix:
        slots |= {"PalHe": slots["palhe"].capitalize(), "PalHis": slots["palhis"].capitalize()}
    return rng.choice(SHE if she else HE), slots


def _derived(slots: dict[str, str]) -> dict[str, str]:
    """Phrases whose article or preposition depends on the word: "on an island", "sharp spines"."""
    home, feature = slots["home"], slots["feature"]
    plural = feature.endswith("s") and not feature.endswith("ss")
    return {
        "inhome": f"{'on' if home.startswith(_HOMES_ON) else 'in'} {home}",
        "afeature": feature if plural else f"a {feature}",
        "a_look_kind": f"a {slots['look']} {slots['kind']}",
        "a_hero": f"a {slots['look']} {slots['kind']} named {slots['name']}",
    }


def draw_cast(rng: random.Random, hero: Kind, friend: Kind | None = None, **fixed: str) -> dict[str, str]:
    """The slots of one story. What the asker named (`thing`, `place`) comes in as `fixed`."""
    other = friend or rng.choice([kind for kind in ANIMALS + JOBS + FANCY if kind.name != hero.name])
    name, slots = _pronouns(rng, hero, "")
    pal, pal_slots = _pronouns(rng, other, "pal")
    while pal == name:
        pal, pal_slots = _pronouns(rng, other, "pal")
    thing, looks = rng.choice(THINGS)
    place, place2 = rng.sample(PLACES, 2)
    look, look2 = rng.sample(hero.looks, 2)
    slots |= pal_slots
    slots |= {"name": name, "kind": hero.name, "look": look, "look2": look2, "home": rng.choice(hero.homes)}
    slots |= {"food": rng.choice(hero.foods), "feature": rng.choice(hero.features), "pal": pal}
    slots |= {"palkind": other.name, "apal": f"a {rng.choice(other.looks)} {other.name}"}
    slots |= {"thing": thing, "thinglook": rng.choice(looks), "place": place, "place2": place2}
    slots |= {"weather": rng.choice(WEATHER), "moral": rng.choice(MORALS), "badmood": rng.choice(_BAD_MOODS)}
    slots |= {"bodypart": rng.choice(["legs", "knees", "feet"]), "hiding": rng.choice(words("hiding"))}
    for slot, listed in (("time", "times"), ("mood", "moods"), ("skill", "skills"), ("fear", "fears")):
        slots[slot] = rng.choice(words(listed))
    slots["wonder"] = rng.choice(words("wonders"))
    return slots | _derived(slots) | fixed
