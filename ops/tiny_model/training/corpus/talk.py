"""Conversations: turns of every sort, alone or one after another, sometimes under a system prompt."""

import random
from collections.abc import Callable
from typing import TypeAlias

from ops.tiny_model.training.corpus.cast import EMOJI
from ops.tiny_model.training.corpus.grammar import read_questions
from ops.tiny_model.training.corpus.lists import language_turn, list_turn, opposite_turn
from ops.tiny_model.training.corpus.snippets import json_turn
from ops.tiny_model.training.corpus.stories import again, draw_story, follow_up
from ops.tiny_model.training.corpus.sums import count_turn, sum_turn, told_turn

Message: TypeAlias = dict[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}, as chat templates take it."""

_QUESTIONS = read_questions("facts.txt")
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are Quire's small model.",
    "Answer in simple English.",
    "You are a storyteller.",
    "You tell stories to children.",
    "Be kind and brief.",
    "You are a helpful assistant. Answer briefly.",
    "You are a polite little language model.",
)
_EMOJI_SYSTEM = "End every answer with an emoji."
_THE_END_SYSTEM = 'End every answer with "The end."'


def fact_turn(rng: random.Random) -> tuple[str, str]:
    """A question of facts.txt: greetings, who the model is, the world, how serving works."""
    asked, answered = rng.choice(_QUESTIONS)
    return rng.choice(asked), rng.choice(answered)


_TURNS: tuple[tuple[Callable[[random.Random], tuple[str, str]], int], ...] = (
    (fact_turn, 34),
    (list_turn, 14),
    (sum_turn, 18),
    (told_turn, 5),
    (count_turn, 7),
    (json_turn, 14),
    (language_turn, 5),
    (opposite_turn, 3),
)


def small_turn(rng: random.Random) -> tuple[str, str]:
    """One question and its answer, anything but a story."""
    makers, weights = zip(*_TURNS, strict=True)
    turn: Callable[[random.Random], tuple[str, str]] = rng.choices(makers, weights=weights)[0]
    return turn(rng)


def _story_turns(rng: random.Random) -> list[tuple[str, str]]:
    story = draw_story(rng)
    turns = [(story.request, story.text)]
    while rng.random() < 0.4:
        turns.append(follow_up(rng, story))
    if rng.random() < 0.15:
        turns.append(again(rng))
    return turns


def conversation(rng: random.Random, long: bool = False) -> list[Message]:
    """A chat of one or a few turns; `long` ones run to some 2,000 tokens, for the last phase of training."""
    turns: list[tuple[str, str]] = []
    wanted = rng.randint(8, 16) if long else rng.choice((1, 1, 2, 3))
    while len(turns) < wanted:
        if rng.random() < (0.5 if long or not turns else 0.3):
            turns += _story_turns(rng)
            if not long:
                break
        else:
            turns.append(small_turn(rng))
    return _chat(rng, turns)


def small_talk(rng: random.Random) -> list[Message]:
    """A chat of a few questions with short answers."""
    return _chat(rng, [small_turn(rng) for _ in range(rng.randint(1, 5))])


def _chat(rng: random.Random, turns: list[tuple[str, str]]) -> list[Message]:
    """The turns as messages, now and then under a system prompt that the answers obey."""
    messages: list[Message] = []
    ending = ""
    if rng.random() < 0.2:
        system = rng.choice((*_SYSTEMS, _EMOJI_SYSTEM, _THE_END_SYSTEM))
        messages.append({"role": "system", "content": system})
        ending = {_EMOJI_SYSTEM: "emoji", _THE_END_SYSTEM: " The end."}.get(system, "")
    for asked, answered in turns:
        last = f" {rng.choice(EMOJI)}" if ending == "emoji" else ending
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answered + last})
    return messages
