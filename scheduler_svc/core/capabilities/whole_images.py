"""Images whose tokens see each other, those behind them, too: no row ends within one.

    prompt     p p p ▣ ▣ ▣ ▣ ▣ p p
    chunks     └───┘                 budget for 5: it ends before the image
                     └─────────┘     budget for 3: it has the whole image, if the step's tokens allow it

A row may begin within an image, whose first tokens the cache had: what these have seen has been computed.

Decodes come first in a step. Where they and an image are more than a step may have, the last decodes in the
order of blocks sit out every other step, until the image has been computed.
"""

from collections.abc import Iterable, Sequence

from scheduler_svc.core.images import Image, images_between
from scheduler_svc.core.sequence import Sequence as Running
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def room_beside_decodes(state: SchedulerState, prefills: Iterable[Running]) -> int:
    """Tokens that the decodes of this step leave to an image with which a prompt goes on; 0: none waits.

    `prefills`: those that run, the first to be computed first. The room is that of the first one's image for
    which blocks are free. If there is none, the first one may preempt others for it.
    """
    if state.made_room:
        state.made_room = False
        return 0
    images = {each: tokens for each in prefills if (tokens := _next_image(state, each))}
    if not images:
        return 0

    def lacks_blocks(sequence: Running) -> bool:
        assert sequence.table is not None
        needed = state.limits.blocks_for(sequence.planned + images[sequence])
        return needed - len(sequence.table.blocks) > state.batch.pool.free_blocks

    state.made_room = True
    return images[min(images, key=lacks_blocks)]


def _next_image(state: SchedulerState, sequence: Running) -> int:
    """Tokens of the image that a prefill computes next; 0 if it goes on with text, or has to wait."""
    request, start, end = sequence.group.request, sequence.planned, len(sequence.tokens)
    if not request.images or sequence.sight:
        return 0
    if not state.batch.grammars.ready(request.grammar):
        end -= 1
    images = images_between(request.images, start, min(start + 1, end))
    return next((min(image.end, end) - start for image in images), 0)


def most(
    state: SchedulerState, step: StepBuilder, images: Sequence[Image], start: int, end: int, count: int
) -> int:
    """How many positions from `start` on a row may compute that would compute `count`, of those up to `end`.

    More than `count` if it begins with an image: the budget of prompts may be smaller than any image.
    """
    found = up_to_images(images, start, end, count)
    if found or not count:
        return found
    needed = min(end, next(images_between(images, start, start + 1)).end) - start
    return needed if needed <= state.limits.max_step_tokens - step.tokens else 0


def up_to_images(images: Sequence[Image], start: int, end: int, count: int) -> int:
    """How many of `count` positions from `start` on come before an image that ends behind them, though not
    behind `end`; all of them if there is no such image."""
    for image in images_between(images, start, start + count):
        if min(image.end, end) > start + count:
            return max(0, image.position - start)
    return count
