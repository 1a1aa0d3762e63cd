"""Images whose tokens see each other, those behind them, too: no row ends within one.

    prompt     p p p ▣ ▣ ▣ ▣ ▣ p p
    chunks     └───┘                 budget for 5: it ends before the image
                     └─────────┘     budget for 3: it has the whole image, if the step's tokens allow it

A row may begin within an image, whose first tokens the cache had: what these have seen has been computed.

Decodes come first in a step. Where they and an image are more than a step may have, the youngest decodes sit
out every other step, until the image has been computed.
"""

from collections.abc import Sequence

from scheduler_svc.core.images import Image, images_between
from scheduler_svc.core.sequence import Sequence as Running
from scheduler_svc.core.sequence import State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def room_beside_decodes(state: SchedulerState) -> int:
    """Tokens that the decodes of this step leave to an image with which a prompt goes on; 0: none waits."""
    waits, state.made_room = not state.made_room, False
    for sequence in state.batch.running if waits else ():
        if sequence.state is State.PREFILL and (tokens := _next_image(sequence)):
            state.made_room = True
            return tokens
    return 0


def _next_image(sequence: Running) -> int:
    """Tokens of the image that a prefill computes next; 0 if it goes on with text, or has to wait."""
    images, start = sequence.group.request.images, sequence.planned
    if not images or sequence.sight:
        return 0
    return next((image.end - start for image in images_between(images, start, start + 1)), 0)


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
