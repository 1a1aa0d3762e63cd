"""Stories and the turns of talk around them: the request, the story, questions about it."""

import random
from dataclasses import dataclass

from ops.tiny_model.training.corpus.cast import FANCY, JOBS, PLACES, THINGS, Kind, any_kind, draw_cast
from ops.tiny_model.training.corpus.grammar import Beats, capital, draw, expand, read_sections

_SECTIONS = read_sections("stories.txt")
_OPENING, _ENDING, _SHORT = (_SECTIONS.pop(name) for name in ("opening", "ending", "short"))
_PLOTS = list(_SECTIONS.values())
_ABOUT_PLACE = [
    plot for name, plot in _SECTIONS.items() if name in ("lost", "journey", "race", "fear", "letter")
]
_ABOUT_THING = [_SECTIONS[name] for name in ("lost", "sorry")]

_REQUESTS = (
    "[Tell|tell] me a [|short |little |nice ]story about {what}[.||, please.| please]",
    "[Write|write] a [|short |little |funny ]story about {what}[.||, please.]",
    "[Write|Tell] [me |]a story with {what}[.| in it.]",
    "[Could|Can|Would] you [please |]tell me a [story|tale] about {what}?",
    "[Could|Can] you write a [short |]story about {what}?",
    "I would like to hear a story about {what}.",
    "Please tell [me |us ]a [|short |bedtime ]story about {what}.",
    "[Do you know a|I want a|I need a] story about {what}[.|, please.]",
    "[A|a] story about {what}[, please.| please|!|]",
    "[Story|story] about {what}",
    "Make up a [story|tale] about {what}.",
    "My [daughter|son|little sister|grandson] would like a story about {what}.",
    "Tell a tale of {what}.",
    "Once more a story, this time about {what}.",
    "Is there a story about {what}?",
)
_LONG_REQUESTS = ("[Tell|Write] me a long story about {what}.", "A long story about {what}, please.")
# What is asked for, and the slot that the story must then contain.
_ABOUT = {
    "hero": ("a {kind}", "kind"),
    "look": ("a {look} {kind}", "kind"),
    "pair": ("a {kind} and a {palkind}", "palkind"),
    "thing": ("a [|lost |{thinglook} ]{thing}", "thing"),
    "place": ("{place}", "place"),
    "none": ("something nice", "name"),
}
_TITLES = "[{Name}|{Name} the {Kind}|The {Kind} and the {Palkind}|The {Kind} near {place}]"
_SHORT_REQUESTS = (
    "Tell me a very short story about {what}.",
    "Tell me a story about {what} in [three|four] sentences.",
    "[Write|Tell me] a tiny story about {what}.",
    "A very short story about {what}, please.",
)
# What the story must have said (a slot), the questions about it, the answers to them.
_FOLLOW_UPS = (
    (
        "name",
        "What was the {kind}'s name?|What is the name of the {kind}?",
        "[The {kind}'s name was|The {kind} was called] {name}.",
    ),
    ("home", "Where did {name} live?|Where did the {kind} live?", "{Name} lived {inhome}."),
    (
        "apal",
        "Who is {pal}?|Who was {pal}?",
        "{pal} is {apal}, [a friend of {name}|who meets {name} in the story].",
    ),
    ("food", "What does {name} like to eat?|What does the {kind} eat?", "{Name} likes {food}."),
    ("place", "[Where does the story take place|Where does it happen]?", "It takes place near {place}."),
    ("name", "Give the story a title.|What is a good title?|Can you find a title?", "{title}"),
    ("moral", "What is the moral of the story?|What can we learn from it?", "{moral}"),
    ("name", "Did you like the story?", "Yes, [very much|I did]. I like {name} the {kind} [most|best]."),
    (
        "place",
        "Is that a true story?",
        "No, I made it up. But {name} the {kind} might be somewhere near {place}.",
    ),
)
_AGAIN = (
    "Another one!",
    "One more, please.",
    "Tell me another story.",
    "Now a story about {what}.",
    "Now tell me one about {what}.",
    "And one about {what}?",
)
_REACTIONS = ("[What a|That was a] [lovely|nice|beautiful] story!", "[Thank you|Thanks]! I [liked|loved] it.")
_REPLIES = (
    "[I am glad that you liked it|Thank you][!|. Would you like to hear another one?]",
    "You are welcome[!|. I have more stories about {kind}s, if you like.]",
)


@dataclass(frozen=True)
class Story:
    """A story with its request and the slots that it was told from."""

    request: str
    text: str
    slots: dict[str, str]


def tell(rng: random.Random, slots: dict[str, str], plots: list[Beats], length: str) -> str:
    """`length`: "short" is three sentences or so, "long" joins two plots, anything else is one plot."""
    if length == "short":
        return draw(rng, _SHORT, slots)
    parts = [draw(rng, _OPENING, slots), draw(rng, rng.choice(plots), slots)]
    if length == "long":
        later = dict(slots, time=rng.choice(("some weeks later", "the next year", "a month after that")))
        parts.append(draw(rng, rng.choice(_PLOTS), later))
    parts.append(draw(rng, _ENDING, slots))
    return rng.choice((" ", "\n\n", " ")).join(parts)


def _cast_for(rng: random.Random, hero: Kind, about: str) -> tuple[dict[str, str], list[Beats]]:
    """Slots for what is asked about, and the plots that can carry it."""
    if about == "pair":
        friends = [kind for kind in (any_kind(rng), *JOBS, *FANCY) if kind.name != hero.name]
        return draw_cast(rng, hero, rng.choice(friends)), _PLOTS
    if about == "thing":
        thing, looks = rng.choice(THINGS)
        return draw_cast(rng, hero, thing=thing, thinglook=rng.choice(looks)), _ABOUT_THING
    if about == "place":
        slots = draw_cast(rng, hero, place=rng.choice(PLACES))
        if slots["place"] == slots["place2"]:
            slots["place2"] = "the end of the valley"
        return slots, _ABOUT_PLACE
    return draw_cast(rng, hero), _PLOTS


def draw_story(rng: random.Random) -> Story:
    """A request for a story about some hero, pair, thing or place, and the story."""
    hero = any_kind(rng)
    about = rng.choices(list(_ABOUT), weights=(50, 12, 14, 8, 8, 6))[0]
    slots, plots = _cast_for(rng, hero, about)
    slots["what"] = expand(rng, _ABOUT[about][0], slots)
    slots["title"] = expand(rng, _TITLES, slots)
    length = rng.choices(("short", "plain", "long"), weights=(12, 80, 8))[0]
    if about in ("thing", "place") and length == "short":
        length = "plain"
    requests = {"short": _SHORT_REQUESTS, "plain": _REQUESTS, "long": _LONG_REQUESTS}[length]
    request = expand(rng, rng.choice(requests), slots)
    text = tell(rng, slots, plots, length)
    while slots[_ABOUT[about][1]] not in text:  # a story with an owl in it has an owl in it
        text = tell(rng, slots, plots, length)
    return Story(request, text, slots)


def follow_up(rng: random.Random, story: Story) -> tuple[str, str]:
    """A question about the story that was just told, and its answer."""
    if rng.random() < 0.2:
        asked, answered = rng.choice(_REACTIONS), rng.choice(_REPLIES)
    else:
        told = [row for row in _FOLLOW_UPS if story.slots[row[0]] in story.text]
        _, choices, answered = rng.choice(told)
        asked = rng.choice(choices.split("|"))
    return expand(rng, asked, story.slots), expand(rng, answered, story.slots)


def again(rng: random.Random) -> tuple[str, str]:
    """A request for one more story, which leans on the turn before, and that story."""
    story = draw_story(rng)
    return expand(rng, rng.choice(_AGAIN), story.slots), story.text


def titled(rng: random.Random) -> str:
    """A story as a page of a book: a title, a blank line, the text."""
    story = draw_story(rng)
    return f"{capital(story.slots['title'])}\n\n{story.text}"
