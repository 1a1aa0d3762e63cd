"""Puts the files of images into plans, before the engine begins them.

Messages name images; their files are in Redis (`ops/runtime/image_store.py`). An image whose tokens are all
in the cache is not looked at again, and its file is left there.
"""

import asyncio
import logging

from ops.runtime.image_store import ImageGone, ImageStore
from proto import arrays
from proto.images_pb2 import PromptImage
from proto.rpc import BusAway
from proto.worker_pb2 import StepPlan

TRIES = 10
PAUSE_SECONDS = 0.3
"""Between tries, while Redis is away."""

log = logging.getLogger(__name__)


async def bring(plan: StepPlan, store: ImageStore) -> None:
    """Set `data` of the images that the plan's new sequences have yet to compute, in part at least.

    One that is gone stays empty: its row fails, and no other.
    """
    if not any(new.images for new in plan.new_slots):
        return
    starts = dict(zip(_numbers(plan.rows.slots), _numbers(plan.rows.starts), strict=False))
    for new in plan.new_slots:
        for image in new.images:
            if starts.get(new.slot, 0) < image.position + image.tokens:
                image.data = await _file(image, store)


async def _file(image: PromptImage, store: ImageStore) -> bytes:
    for _ in range(TRIES):
        try:
            return await store.get(image.file)
        except ImageGone as error:
            log.warning("%s", error)
            break
        except BusAway:
            await asyncio.sleep(PAUSE_SECONDS)
    return b""


def _numbers(packed: bytes) -> list[int]:
    """The runner refuses a malformed array."""
    return list(arrays.unpack(packed[: len(packed) // 4 * 4]))
