"""Texts that go on past the model's context.

When a sequence has filled its context, it rolls: it keeps the first tokens and the newest, together half a
context, drops the tokens between them, and goes on as if what it kept were its prompt.

    text      a b c d e f g h i j k l m n o p         16 tokens, a context full
              └─────┘                 └─────┘         4 sinks, and the newest
    context   a b c d m n o p                         positions 0 to 7, computed again

The first tokens stay because attention relies on them whatever they are (Xiao et al. 2024, "Efficient
Streaming Language Models with Attention Sinks", section 3). In the paper keys stay in the cache and are
rotated to new positions with every token. Here they are computed again from their tokens, once for each half
of a context. So they are exact, and every model and kernel can do it. What a sequence has in its context
follows from its text alone: after a crash or a preemption it goes on with the same tokens.
"""

from array import array

SINKS = 4
"""First tokens of a text, which are never dropped."""
SHORTEST = 4 * SINKS
"""Tokens of the shortest context that can roll."""


def dropped(length: int, context: int) -> int:
    """How many tokens a text of `length` tokens has dropped, in a context of `context` tokens."""
    if length < context:
        return 0
    each = context - context // 2
    return ((length - context) // each + 1) * each


def kept(text: "array[int]", count: int) -> "array[int]":
    """The tokens in the context of a text that has dropped `count` tokens."""
    return text[:SINKS] + text[SINKS + count :] if count else text


def prompt_in(prompt: int, count: int) -> int:
    """How many tokens of the context are of the prompt, which has `prompt`, after `count` were dropped."""
    return max(min(SINKS, prompt), prompt - count)
