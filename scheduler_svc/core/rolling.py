"""Texts that go on past the model's context.

When a sequence has filled its context, it rolls: it keeps the first tokens and the newest, together half a
context, forgets those between them, and goes on as if what it kept were its prompt.

    text      a b c d e f g h i j k l m n o p         16 tokens, a context full
              └─────┘                 └─────┘         4 sinks, and the newest
    context   a b c d m n o p                         positions 0 to 7, computed anew

The first tokens stay because attention leans on them whatever they say (Xiao et al. 2024, "Efficient
Streaming Language Models with Attention Sinks", section 3). There keys stay in the cache and are rotated to
new positions with every token; here they are computed anew from their tokens, once for half a context. So
they are exact, any model and any kernel can do it, and what a sequence has in its context follows from its
text alone: whoever takes it up later, after a crash or a preemption, goes on with the same tokens.
"""

from array import array

SINKS = 4
"""First tokens of a text that are never forgotten."""
SHORTEST = 4 * SINKS
"""Tokens of a context in which there is something to keep beside them."""


def dropped(length: int, context: int) -> int:
    """How many tokens a text of so many has left behind, in a model's context of `context` tokens."""
    if length < context:
        return 0
    each = context - context // 2
    return ((length - context) // each + 1) * each


def kept(text: "array[int]", count: int) -> "array[int]":
    """What is in the context of a text that has left `count` tokens behind."""
    return text[:SINKS] + text[SINKS + count :] if count else text


def prompt_in(prompt: int, count: int) -> int:
    """How many tokens of a context are the prompt, if that has `prompt` and the text left `count` behind."""
    return max(min(SINKS, prompt), prompt - count)
