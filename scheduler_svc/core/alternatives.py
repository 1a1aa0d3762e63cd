"""How many alternatives the log probabilities of one step may have, and numbers its vectors.

A result is one message, and the results of plans that are in flight must fit into what the transport holds
for a reader. An alternative takes eight bytes, as two numbers of a token's vector do. Up to `FEW` with each
token are always possible. Of rows that want more, up to the whole vocabulary, some wait for a later step.
"""

FEW = 20
"""Alternatives to each sampled token that are not counted."""

MOST = 2**14 * FEW
"""Alternatives of a step at most, with 2.6 MB, if it reports more than one token's."""

NUMBERS = 2 * MOST
"""Numbers of the vectors of a step at most, if it reports nothing else, and of those of one text's tokens."""
