"""Draws tokens from filtered logits without sorting. `kernels/reference/sampling.py` defines the result.

A row's tokens are ordered by score, the greatest first. Of equal scores the lower token comes first. Each
filter keeps the first tokens of that order, up to an edge:

    order     ▇ ▇ ▆ ▅ ▅ ▃ ▂ ▂ ▁ ▁ ▁ ▁ · · ·
    min-p     ─────────────────┘                  the edge follows from the best score
    top-k     ───────────┘                        found by bisection: how many tokens are before a score?
    top-p     ? ? ? ? ? ?                         only checked for a token that was drawn

Among the tokens up to the edge the one with the greatest sum of score and noise is drawn. Top-p keeps it if
the tokens before it have less than `top_p` of the mass. Otherwise top-p drops it and all tokens after it, so
it becomes the new edge, and a token before it is drawn. Few such rounds are needed: tokens are drawn with
their probabilities, so the first drawn token is kept with a probability of at least `top_p`.

There are two launches, and logits are read once:

    draw_parts   A program takes a part of a row. Without top-k it draws a token. With top-k or top-p it finds
                 the best score of each group of tokens, and the number, or mass, of those that min-p keeps.
    draw_rows    A program takes a row. Without top-k it takes the best of the parts' tokens. For top-k and
                 top-p it holds the groups with the best scores in registers.

All tokens with a score above the best of the groups that are left out are in the chosen groups. These are
enough for top-k up to the number of groups, and for top-p as soon as one of these tokens is drawn. Otherwise
the program reads the row's logits again (`reread.py`), once for each step of the bisection and for each draw.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.sampling import INTEGERS, NUMBERS, SamplingState
from gpu_worker.kernels.triton.sampling.held import (
    LOWEST,
    MARGIN,
    count_of,
    depth,
    drawn_of,
    edge_of_first,
    gumbel,
    is_before,
    mass_of,
    score_of,
    uniform,
)
from gpu_worker.kernels.triton.sampling.reread import edge_of_best, winner

GROUP = 64
"""Tokens of a group."""
CHOSEN = 64
"""Groups that a program of `draw_rows` holds in registers."""
PART = 2048
"""Tokens that a program of `draw_parts` takes."""
TILE = 1024
"""Logits that a program of `draw_rows` reads at a time if these are not enough."""

TEMPERATURE = tl.constexpr(NUMBERS["temperature"])
TOP_P = tl.constexpr(NUMBERS["top_p"])
MIN_P = tl.constexpr(NUMBERS["min_p"])
TOP_K = tl.constexpr(INTEGERS["top_k"])
SEED = tl.constexpr(INTEGERS["seed"])
SEQUENCE_INDEX = tl.constexpr(INTEGERS["sequence_index"])
DROPPED_TOKENS = tl.constexpr(INTEGERS["dropped_tokens"])


@triton.jit
def random_words(integers, position):
    """Two words that the noise of a row's tokens follows from. `integers`: the row's."""
    seed, sequence = tl.load(integers + SEED), tl.load(integers + SEQUENCE_INDEX)
    # The position in the whole text, tokens that a rolling context has dropped included.
    place = position + tl.load(integers + DROPPED_TOKENS)
    zero = tl.full([], 0, tl.int32)
    word0, word1, _, _ = tl.philox(seed, place.to(tl.int32), sequence.to(tl.int32), zero, zero)
    return word0, word1


@triton.jit
def filters(numbers, integers, vocabulary):
    """A row's top_k, 0 if it drops nothing; its top_p; and the depth of the deepest score that min-p keeps:
    the least whose rounded exp is at least min_p."""
    top_k, min_p = tl.load(integers + TOP_K), tl.load(numbers + MIN_P)
    floor = tl.full([], LOWEST - 1, tl.int32)
    if min_p > 0:
        floor = depth(tl.log(min_p.to(tl.float64) * (1 - 2.0**-25)).to(tl.float32))
    return tl.where(top_k < vocabulary, top_k, 0).to(tl.int32), tl.load(numbers + TOP_P), floor


@triton.jit(
    do_not_specialize=["vocabulary"],
    do_not_specialize_on_alignment=["rows", "slots", "positions", "peaks", "drawn", "counts", "masses"],
)
def draw_parts(
    logits,
    rows,
    slots,
    positions,
    best,
    numbers,
    integers,
    group_best,
    peaks,
    drawn,
    counts,
    masses,
    vocabulary,
    NUMBER_COLUMNS: tl.constexpr,
    INTEGER_COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    PART: tl.constexpr,
):
    """Writes what `draw_rows` reads. Of `rows` [n]: group_best float32 [n, groups]; of parts, [n, parts],
    peaks float32 and drawn int32, counts int32, or masses float64."""
    number, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + number)
    slot = tl.load(slots + row)
    numbers += slot * NUMBER_COLUMNS
    temperature, greatest = tl.load(numbers + TEMPERATURE), tl.load(best + row)
    # A row without a finite best logit draws nothing: infinity less itself is NaN.
    if (temperature > 0) & (greatest - greatest == 0):
        integers += slot * INTEGER_COLUMNS
        top_k, top_p, floor = filters(numbers, integers, vocabulary)
        GROUPS: tl.constexpr = PART // GROUP
        group = tl.arange(0, GROUPS)
        at = (part * GROUPS + group)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        own = score_of(logits + row * vocabulary, at, at < vocabulary, greatest, temperature)
        kept = depth(own) <= floor
        place = number * tl.num_programs(1) + part
        if top_k > 0:
            tl.store(counts + place, count_of(kept))
        else:
            word0, word1 = random_words(integers, tl.load(positions + number))
            token, peak = drawn_of(own, kept, at, word0, word1, vocabulary)
            tl.store(drawn + place, token)
            tl.store(peaks + place, peak)
            if top_p < 1:
                tl.store(masses + place, mass_of(own, kept))
        if (top_k > 0) | (top_p < 1):
            tl.store(group_best + place * GROUPS + group, tl.max(own, axis=1))


@triton.jit
def best_groups(group_best, chosen, GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr, CHOSEN: tl.constexpr):
    """The CHOSEN groups of a row with the best scores, in ascending order, and a depth: all tokens that are
    less deep are in them. `chosen`: room for their numbers."""
    group = tl.arange(0, GROUPS_PADDED)
    depths = depth(tl.load(group_best + group, mask=group < GROUPS, other=float("-inf")))
    bound, first = tl.full([], LOWEST, tl.int32), group < CHOSEN
    if GROUPS > CHOSEN:
        bound, last = edge_of_first(depths, group, CHOSEN)
        first = is_before(depths, group, bound, last)
    tl.store(chosen + tl.cumsum(first.to(tl.int32), axis=0) - 1, group, mask=first)
    tl.debug_barrier()  # threads read numbers that other threads wrote
    return tl.load(chosen + tl.arange(0, CHOSEN)), bound


@triton.jit(
    do_not_specialize=["vocabulary"],
    do_not_specialize_on_alignment=[
        *("rows", "slots", "positions", "peaks", "drawn", "counts", "masses", "chosen"),
    ],
)
def draw_rows(
    logits,
    rows,
    slots,
    positions,
    best,
    numbers,
    integers,
    group_best,
    peaks,
    drawn,
    counts,
    masses,
    chosen,
    tokens,
    vocabulary,
    NUMBER_COLUMNS: tl.constexpr,
    INTEGER_COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    TILE: tl.constexpr,
):
    """Overwrite `tokens` of the rows that draw. chosen: room for numbers of groups, int32 [n, CHOSEN].

    GROUPS, PARTS: of a row; *_PADDED: filled up to a power of two.
    """
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + number)
    slot = tl.load(slots + row)
    numbers += slot * NUMBER_COLUMNS
    temperature, greatest = tl.load(numbers + TEMPERATURE), tl.load(best + row)
    if (temperature > 0) & (greatest - greatest == 0):
        integers += slot * INTEGER_COLUMNS
        top_k, top_p, floor = filters(numbers, integers, vocabulary)
        word0, word1 = random_words(integers, tl.load(positions + number))
        logits += row * vocabulary
        part = tl.arange(0, PARTS_PADDED)
        places, there = number * PARTS + part, part < PARTS
        token, edge, last = tl.full([], -1, tl.int32), floor, vocabulary
        bound, enough = tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float64)
        at = tl.zeros([CHOSEN, GROUP], tl.int32)
        own = tl.zeros([CHOSEN, GROUP], tl.float32)
        if (top_k > 0) | (top_p < 1):
            best_of_row, mine = group_best + number * GROUPS, chosen + number * CHOSEN
            groups, bound = best_groups(best_of_row, mine, GROUPS, GROUPS_PADDED, CHOSEN)
            at = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            own = score_of(logits, at, at < vocabulary, greatest, temperature)
        known = (depth(own) < bound) & (depth(own) <= floor)
        if top_k == 0:
            peak = tl.load(peaks + places, mask=there, other=float("-inf"))
            found = tl.load(drawn + places, mask=there, other=-1)
            close = (found >= 0) & (peak >= tl.max(peak, axis=0) - MARGIN)
            token = tl.max(tl.where(close, found, -1), axis=0)
            if count_of(close) > 1:
                scores = score_of(logits, found, close, greatest, temperature)
                noisy = tl.where(close, scores + gumbel(uniform(found, word0, word1)), float("-inf"))
                token = tl.min(tl.where(noisy == tl.max(noisy, axis=0), found, vocabulary), axis=0)
            if top_p < 1:
                enough = tl.sum(tl.load(masses + places, mask=there, other=0.0), axis=0)
        else:
            count = tl.sum(tl.load(counts + places, mask=there, other=0), axis=0)
            wanted = tl.minimum(top_k, count)
            if count_of(known) >= wanted:
                edge, last = edge_of_first(tl.where(known, depth(own), LOWEST), at, wanted)
                kept = known & is_before(depth(own), at, edge, last)
                token, _ = drawn_of(own, kept, at, word0, word1, vocabulary)
                enough = mass_of(own, kept)
            else:
                if top_k < count:
                    edge, last = edge_of_best(
                        logits, greatest, temperature, top_k, floor, count, vocabulary, TILE
                    )
                enough, token = winner(
                    logits, greatest, temperature, edge, last, word0, word1, vocabulary, TILE
                )
        enough *= top_p.to(tl.float64)
        asking = (top_p < 1) & (token >= 0)
        while asking:  # whether those before the token leave of top-p's mass
            edge = depth(tl.div_rn(tl.load(logits + token) - greatest, temperature))
            if edge < bound:
                kept = known & is_before(depth(own), at, edge, token - 1)
                less, _ = drawn_of(own, kept, at, word0, word1, vocabulary)
                mass = mass_of(own, kept)
            else:
                mass, less = winner(
                    logits, greatest, temperature, edge, token - 1, word0, word1, vocabulary, TILE
                )
            asking = (mass >= enough) & (less >= 0)
            token = tl.where(asking, less, token)
        if token >= 0:
            tl.store(tokens + row, token.to(tl.int64))


def draw_into(
    tokens: Tensor,
    logits: Tensor,
    rows: Tensor,
    slots: Tensor,
    positions: Tensor,
    best: Tensor,
    state: SamplingState,
) -> None:
    """Overwrite `tokens` of the rows among `rows` that draw.

    `rows`, `positions`: int64 [n] on the device. All other tensors have an entry for every row of the logits.
    """
    vocabulary, device, count = logits.shape[1], logits.device, len(rows)
    part = min(PART, max(GROUP, triton.next_power_of_2(vocabulary)))
    parts = triton.cdiv(vocabulary, part)
    groups = parts * (part // GROUP)
    padded = triton.next_power_of_2(groups)
    chosen = min(CHOSEN, padded)
    floats = torch.empty(count * (groups + parts), dtype=torch.float32, device=device)
    integers = torch.empty(count * (2 * parts + chosen), dtype=torch.int32, device=device)
    group_best, peaks = floats.split((count * groups, count * parts))
    drawn, counts, numbers_of_groups = integers.split((count * parts, count * parts, count * chosen))
    masses = torch.empty(count * parts, dtype=torch.float64, device=device)
    asked = logits, rows, slots, positions, best, state.numbers, state.integers
    found = group_best, peaks, drawn, counts, masses
    columns = {"NUMBER_COLUMNS": state.numbers.shape[1], "INTEGER_COLUMNS": state.integers.shape[1]}
    # Without fused operations, results are rounded as in the reference.
    draw_parts[(count, parts)](
        *asked, *found, vocabulary, **columns, GROUP=GROUP, PART=part, num_warps=4, enable_fp_fusion=False
    )
    draw_rows[(count,)](
        *asked,
        *found,
        numbers_of_groups,
        tokens,
        vocabulary,
        **columns,
        GROUP=GROUP,
        GROUPS=groups,
        GROUPS_PADDED=padded,
        PARTS=parts,
        PARTS_PADDED=triton.next_power_of_2(parts),
        CHOSEN=chosen,
        TILE=min(TILE, triton.next_power_of_2(vocabulary)),
        num_warps=8,
        enable_fp_fusion=False,
    )
