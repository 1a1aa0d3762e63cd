"""Lists, words in other languages, opposites: short questions whose answers have a fixed shape."""

import random

from ops.tiny_model.training.corpus.grammar import capital, expand, read_table

_TABLE = read_table("lists.txt")
_LANGUAGES = read_table("languages.txt")
_NUMBERS = {3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
_REQUESTS = (
    "[List|list] {count} {name}[.||, please.]",
    "[Name|Tell me] {count} {name}[.||, please.]",
    "[Give|Write] me a list of {count} {name}[.|]",
    "[Can|Could] you [list|name] {count} {name}?",
    "I need {count} {name}.",
    "What are {count} {name}?",
)
_OPPOSITES = (
    "hot cold, big small, day night, up down, left right, open closed, young old, fast slow, light dark, "
    "wet dry, happy sad, loud quiet, full empty, soft hard, high low, early late, long short, thick thin, "
    "rich poor, strong weak, clean dirty, near far, sweet sour, first last, true false, begin end, "
    "love hate, win lose"
)
_WORDS_ASKED = ("hello", "thank you", "goodbye", "cat", "water", "friend")


def _render(rng: random.Random, items: list[str], style: str) -> str:
    if style == "numbered":
        return "\n".join(f"{number}. {capital(item)}" for number, item in enumerate(items, 1))
    if style == "dashed":
        return "\n".join(f"- {item}" for item in items)
    return f"{capital(', '.join(items[:-1]))}, and {items[-1]}."


def list_turn(rng: random.Random) -> tuple[str, str]:
    """ "List five fruits." The count that was asked for is the count that is given."""
    name = rng.choice(list(_TABLE))
    count = rng.randint(3, min(7, len(_TABLE[name])))
    items = rng.sample(_TABLE[name], count)
    shown = rng.choice((str(count), _NUMBERS[count], _NUMBERS[count]))
    request = expand(rng, rng.choice(_REQUESTS), {"count": shown, "name": name})
    style = rng.choice(("numbered", "numbered", "dashed"))
    if rng.random() < 0.25:
        style = "sentence"
        if not request.endswith("?"):
            request = f"{request.rstrip('.')} in one sentence."
    elif rng.random() < 0.2:
        style = "dashed"
        request = f"{request.rstrip('.?')} as bullet points."
    intro = rng.choice(("", "", f"Here are {_NUMBERS[count]} {name}:\n\n")) if style != "sentence" else ""
    return request, intro + _render(rng, items, style)


def language_turn(rng: random.Random) -> tuple[str, str]:
    """ "How do you say hello in Japanese?" """
    language = rng.choice(list(_LANGUAGES))
    index = rng.randrange(len(_WORDS_ASKED))
    slots = {"word": _WORDS_ASKED[index], "language": language, "answer": _LANGUAGES[language][index]}
    asked = rng.choice(
        ('[How do you say|how do you say] "{word}" in {language}?', 'What is "{word}" in {language}?')
    )
    answered = '["{word}" in {language} is|In {language} one says|In {language} it is] {answer}.'
    return expand(rng, asked, slots), capital(expand(rng, answered, slots))


def opposite_turn(rng: random.Random) -> tuple[str, str]:
    """ "What is the opposite of hot?" """
    word, other = rng.sample(rng.choice(_OPPOSITES.split(", ")).split(), 2)
    slots = {"word": word, "other": other}
    asked = "[What is|what is|Tell me|Do you know] the opposite of {word}"
    answered = rng.choice(("The opposite of {word} is {other}.", "{Other}.", "It is {other}."))
    text = expand(rng, asked, slots)
    return text + ("." if text.startswith("Tell") else "?"), expand(rng, answered, slots)


def shopping_note(rng: random.Random) -> str:
    """A plain list with a heading, as one finds it on a kitchen table."""
    name = rng.choice(list(_TABLE))
    items = rng.sample(_TABLE[name], min(len(_TABLE[name]), rng.randint(4, 9)))
    return f"{capital(name)}:\n{_render(rng, items, rng.choice(('numbered', 'dashed')))}"
