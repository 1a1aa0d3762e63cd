"""Documents without a chat around them, so that a plain completion has something to continue."""

import random

from ops.tiny_model.training.corpus.cast import ANIMALS, EMOJI, any_kind, draw_cast
from ops.tiny_model.training.corpus.grammar import capital, expand
from ops.tiny_model.training.corpus.lists import shopping_note
from ops.tiny_model.training.corpus.snippets import snippet
from ops.tiny_model.training.corpus.stories import draw_story, titled
from ops.tiny_model.training.corpus.sums import sum_table

_DIARY = (
    "[Today|This morning] I [went to {place}|met {pal}|stayed at home]. {weather} "
    "[I felt {mood}.|I bought a {thing}.]",
    "[{Pal} came to visit|We ate {food}|I wrote a letter to {pal}], "
    "and [we talked for hours|then it rained|I was {mood}].",
    "{weather} [In the evening I|After lunch I] [tried to {skill}|read a book|looked for my {thing}].",
    "[Tomorrow|Next week] I want to see {wonder}. [I am {mood}.|{pal} will come with me.]",
    "I saw a {look} {kind} near {place}. [It had {afeature}.|It looked at me and ran away.]",
)
_LETTER = (
    "Dear {pal},\n\n[thank you for your letter|how are you|I hope you are well][.|!] {weather} "
    "[I am writing from {place}.|Yesterday I was in {place}.] "
    "[I have a new {thinglook} {thing}.|I often think of you.]"
    "\n\n[Please write soon|Come and visit me|Give my love to everyone].\n\nYour {name}",
    "Hello {pal}! [Shall we meet at {place} {time}|Do you have time on Sunday]? [I will bring {food}|"
    "Do not forget the {thing}]. [See you soon|Bye], {name} {emoji}",
)
_PROFILE = (
    "The {kind} [is|can be] {look} and {look2}. It has {afeature}, and it lives {inhome}. It likes {food}. "
    "[Many stories tell of the {kind}.|People like the {kind} for its {feature}.|"
    "You can see a {kind} near {place}.]"
)
_TALK = (
    ("Good morning, {name}!", "Good morning, {pal}! {weather}"),
    ("Where are you going?", "To {place}. I [need a {thing}|want to see {wonder}]."),
    ("Have you seen my {thing}?", "[No, I have not|Yes, it is {hiding}]."),
    ("Are you {mood}?", "[A little|No, not at all|Yes, very]."),
    ("Can you {skill}?", "[Not very well|Yes, of course|I am learning it]."),
    ("Would you like some {food}?", "[Yes, please|No, thank you|Only a little]."),
    ("See you tomorrow!", "See you tomorrow, {pal}!"),
)


def _diary(rng: random.Random, slots: dict[str, str]) -> str:
    lines = rng.sample(_DIARY, rng.randint(2, 4))
    return f"Dear diary,\n\n{' '.join(expand(rng, line, slots) for line in lines)}"


def _talk(rng: random.Random, slots: dict[str, str]) -> str:
    picked = sorted(rng.sample(range(len(_TALK)), rng.randint(3, 6)))
    speakers = (slots["pal"], slots["name"])
    return "\n".join(
        f"{speaker}: {expand(rng, line, slots)}"
        for i in picked
        for speaker, line in zip(speakers, _TALK[i], strict=True)
    )


def plain_document(rng: random.Random) -> str:
    """A page of a book, a story, a diary, a letter, a dialogue, a profile, a list, sums or JSON."""
    sort = rng.choices(
        ("titled", "story", "diary", "letter", "talk", "profile", "list", "sums", "json"),
        weights=(20, 40, 10, 10, 10, 6, 4, 4, 4),
    )[0]
    if sort == "titled":
        return titled(rng)
    if sort == "story":
        return draw_story(rng).text
    if sort == "list":
        return shopping_note(rng)
    if sort == "sums":
        return sum_table(rng)
    if sort == "json":
        return snippet(rng)[1]
    slots = draw_cast(
        rng, rng.choice(ANIMALS) if sort == "profile" else any_kind(rng), emoji=rng.choice(EMOJI)
    )
    if sort == "profile":
        return expand(rng, _PROFILE, slots)
    if sort == "diary":
        return _diary(rng, slots)
    return _talk(rng, slots) if sort == "talk" else capital(expand(rng, rng.choice(_LETTER), slots))
