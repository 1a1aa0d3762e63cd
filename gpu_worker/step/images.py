"""Images in the slots of a batch: what is seen in them, and where their tokens are.

    tokens     p p ▣ ▣ ▣ ▣ ▣ ▣ p p o o        a prompt with an image of two rows and three columns
    place      0 1 2 2 2 2 2 2 5 6 7 8        in models whose rotary embeddings have three positions a token
    row            2 2 2 3 3 3
    column         2 3 4 2 3 4

The tokens of such an image are all at one place, and what follows goes on behind its longer side. So tokens
behind images are turned by their position and a shift, which is the slot's. Those of images are turned by
lines of their own, which each step with some of them adds to the tables of the rotary embedding.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.errors import line_of
from gpu_worker.kernels.rows import Rows
from gpu_worker.machine.clock import Stopwatch
from gpu_worker.machine.cores import restrict_to, usable
from gpu_worker.machine.transfer import indices
from gpu_worker.machine.turns import Turns
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.models.sight import Ahead, Seen, Sight
from gpu_worker.models.vision import Tower
from gpu_worker.step.limits import BatchLimits
from ops.model_directory.vision import Grid, ImageError
from proto.images_pb2 import PromptImage
from proto.worker_pb2 import NewSlot

GONE = "an image is not there"
NOT_BY_ALL = "an image cannot be seen: on another rank"
MAIN_MEMORY = torch.device("cpu")

Announce = Callable[[int], None]
"""Is called with the number of images that have been seen: `NewSlot.sight`."""

Turn = Callable[[Tensor], None]
"""Makes a line of the rotary tables for each token of images in the step, the first one at the tables' first
spare line, from their places, rows and columns, int64 [3, tokens]."""


def _nobody(sight: int) -> None:
    """Nobody wants to know which images have been seen."""


def _go_on() -> None:
    """Nobody waits to be told."""


def _enter(cores: list[int], threads: int, gpu: int | None) -> None:
    """What the thread that looks does first: who starts it may be bound to one core. `gpu`: the process's, if
    it has one; a thread begins with the machine's first. Steps are on its default stream, and would wait
    there until the tower has seen a whole image."""
    restrict_to(cores)
    torch.set_num_threads(threads)
    if gpu is not None:
        torch.cuda.set_device(gpu)
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


@dataclass
class SlotImage:
    """An image of a slot, or of several that are forked from each other."""

    begin: int
    """Position of its first token."""
    end: int
    """Position behind its last one."""
    grid: Grid
    data: bytes
    """Its file; empty if no step was expected to look at it."""
    placeholders: NDArray[np.int64]
    """Positions at which something is seen, ascending."""
    sight: Future[Sight] | None = None
    """What is seen, as long as steps have yet to compute some of it."""
    slots: int = 1
    """Slots that have it."""


@dataclass
class _Part:
    """The placeholders of an image that a row computes."""

    image: SlotImage
    among: slice
    """Which of its placeholders."""
    tokens: NDArray[np.int64] = field(repr=False)
    """Which tokens of the step they are."""


def slot_images(
    model: CausalLM, limits: BatchLimits, device: torch.device, ranks: Ranks = ALONE
) -> "SlotImages | None":
    """For the images of a batch of these sizes; None if the model has no vision tower."""
    if model.tower is None:
        return None
    first_line = model.positions if isinstance(model, Decoder) else 0
    images = SlotImages(limits.max_slots, model.tower, first_line, device, ranks)
    if images.in_grid:
        assert isinstance(model, Decoder)
        images.turn = model.see_in_grid(model.tower.axes, limits.max_step_tokens)
    return images


class SlotImages:
    """The images of all slots."""

    def __init__(
        self, slots: int, tower: Tower, first_line: int, device: torch.device, ranks: Ranks = ALONE
    ) -> None:
        """`first_line`: the first spare line of the tables of rotary embeddings. `ranks`: each sees all
        images."""
        self.tower = tower
        self.in_grid = tower.vision.in_grid
        self.together = tower.vision.together
        self.turn: Turn | None = None
        """None: tokens of images are turned by their positions, as all others are."""
        self.shifts = np.zeros(slots, np.int64)
        """int64 [slots]: what is added to positions behind the last image."""
        self.device_shifts = torch.zeros(slots, dtype=torch.int64, device=device) if self.in_grid else None
        """`shifts` on the device; None if there are none."""
        self.watch = Stopwatch(device)
        """Measures what steps take to see images, and counts these."""
        self.announce: Announce = _nobody
        """Is called, in any thread, with the number of each new sequence's images, from now on, once they
        have been seen or a fault was found in them."""
        self.turns = Turns() if device.type == "cpu" else None
        """Steps take turns with the tower, so that each has all cores; None: they do not share any."""
        if self.turns is not None:
            tower.between_parts = self.turns.pass_on
        gpu = torch.cuda.current_device() if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "images", _enter, (usable(), torch.get_num_threads(), gpu))
        self._first_line, self._device, self._ranks = first_line, device, ranks
        self._images: dict[int, list[SlotImage]] = {}
        self._ends = np.zeros(slots, np.int64)
        """int64 [slots]: position behind the last image; 0: there is none."""

    def fault_in(self, new: NewSlot, length: int) -> str:
        """What is wrong with a new sequence's images; "" if nothing is. `length`: of its known tokens."""
        end = new.forked_tokens
        for image in new.images:
            most = image.rows * image.columns
            if image.position < end or not 0 < most <= image.tokens <= length - image.position:
                return f"an image of {most} of {image.tokens} tokens at position {image.position} of {length}"
            end = image.position + image.tokens
            if len(self._run(image)) != image.tokens:
                return f"{image.tokens} tokens for an image of {image.rows} rows and {image.columns} columns"
        return ""

    def set(self, new: NewSlot) -> None:
        """Take in the images of a new sequence, whose parent's stay with it."""
        slot, images = new.slot, list[SlotImage]()
        if new.forked_tokens:
            images = [
                each for each in self._images.get(new.forked_from, ()) if each.begin < new.forked_tokens
            ]
        for each in images:
            each.slots += 1
        images += (own := [self._taken(image) for image in new.images])
        if own:
            told = partial(self.announce, new.sight) if new.sight else _go_on
            self._thread.submit(self._look_at, own, told)
        shift = sum(max(each.grid.rows, each.grid.columns) - (each.end - each.begin) for each in images)
        self._set_shift(slot, shift if self.in_grid else 0)
        self._ends[slot] = images[-1].end if images else 0
        if images:
            self._images[slot] = images

    def tell(self, sights: Iterable[int]) -> None:
        """Say of images that they have been seen, because their sequences fail anyhow."""
        for sight in sights:
            self.announce(sight)

    def drop(self, slots: Int32s) -> None:
        """Forget the images of slots, which are free now."""
        if self._images:
            for slot in slots.tolist():
                for image in self._images.pop(slot, ()):
                    image.slots -= 1

    def reset(self) -> None:
        """Forget all images."""
        self.announce = _nobody
        for images in self._images.values():
            for image in images:
                image.slots = 0
        self._images.clear()

    def look(self, rows: Rows) -> tuple[Seen | None, dict[int, str]]:
        """What is seen in a step; None if nothing is. And why rows fail, by their slots."""
        self.watch.look()
        parts = self._parts(rows)
        if not parts:
            return None, {}
        faults, found = dict[int, str](), list[Sight]()
        tokens, positions, counts = (list[NDArray[np.int64]]() for _ in range(3))
        for slot, part in parts:
            if self.together != "nowhere" and part.among.stop < len(part.image.placeholders):
                faults[slot] = "a row ends within an image whose tokens are seen together"
                continue
            try:
                sight = self._seen_by_all(part.image)
            except ImageError as error:
                faults[slot] = str(error)
                continue
            found.append(
                Sight(sight.vectors[part.among], tuple(deeper[part.among] for deeper in sight.deeper))
            )
            tokens.append(part.tokens)
            positions.append(part.image.placeholders[part.among])
            counts.append(np.arange(len(part.tokens))[::-1])
            if part.among.stop == len(part.image.placeholders):
                part.image.sight = None
        if not found:
            return None, faults
        deeper = zip(*(sight.deeper for sight in found), strict=True)
        whole = Sight(torch.cat([sight.vectors for sight in found]), tuple(map(torch.cat, deeper)))
        whole = whole.to(self._device)
        every = np.concatenate(tokens)
        ahead = Ahead(every, np.concatenate(positions), np.concatenate(counts))
        return (
            Seen(indices(every, self._device), whole, None if self.together == "nowhere" else ahead),
            faults,
        )

    def are_ahead(self, rows: Rows) -> bool:
        """Whether a row begins before the end of its slot's last image, where `shifts` do not hold yet."""
        return bool((self._ends[rows.slots] > rows.starts).any())

    def lines(
        self, rows: Rows, slots: NDArray[np.integer], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """[tokens]: by which line of the rotary tables each token is turned. `slots`, `positions`: of each.

        Makes the lines of tokens of images.
        """
        found: NDArray[np.int64] = positions + self.shifts[slots]
        if not self.are_ahead(rows):
            return found
        places, count = list[NDArray[np.int64]](), 0
        begins = np.cumsum(rows.counts) - rows.counts
        for slot, start, size, begin in zip(
            rows.slots.tolist(), rows.starts.tolist(), rows.counts.tolist(), begins.tolist(), strict=True
        ):
            if self._ends[slot] <= start:
                continue
            here, shift, done = found[begin : begin + size], 0, start
            for image in self._images[slot]:
                if done < min(image.begin, start + size):
                    last = min(image.begin, start + size)
                    here[done - start : last - start] = np.arange(done, last) + shift
                    done = last
                rows_of, columns = image.grid.rows, image.grid.columns
                if done < (last := min(image.end, start + size)):
                    own = np.arange(done, last) - image.begin
                    place = np.full(len(own), image.begin + shift)
                    places.append(np.stack((place, place + own // columns, place + own % columns)))
                    here[done - start : last - start] = self._first_line + count + np.arange(len(own))
                    count, done = count + len(own), last
                shift += max(rows_of, columns) - (image.end - image.begin)
            here[done - start :] = np.arange(done, start + size) + shift
        if places:
            sent = indices(np.concatenate(places, axis=1), self._device)
            assert self.turn is not None
            self.turn(sent)
        return found

    def _parts(self, rows: Rows) -> list[tuple[int, _Part]]:
        """The placeholders that rows compute, with their slots, in the order of the step's tokens."""
        found = list[tuple[int, _Part]]()
        (looking,) = (self._ends[rows.slots] > rows.starts).nonzero()
        if not len(looking):
            return found
        begins = np.cumsum(rows.counts) - rows.counts
        for row in looking.tolist():
            slot, start, count = (int(of[row]) for of in (rows.slots, rows.starts, rows.counts))
            for image in self._images[slot]:
                first, last = np.searchsorted(image.placeholders, (start, start + count)).tolist()
                if first < last:
                    tokens = image.placeholders[first:last] - start + begins[row]
                    found.append((slot, _Part(image, slice(first, last), tokens)))
        return found

    def _taken(self, image: PromptImage) -> SlotImage:
        is_seen = np.array([token == self.tower.vision.placeholder for token in self._run(image)])
        grid = Grid(image.rows, image.columns)
        taken = SlotImage(
            image.position,
            image.position + image.tokens,
            grid,
            image.data,
            np.flatnonzero(is_seen) + image.position,
        )
        taken.sight = Future() if image.data else None
        return taken

    def _run(self, image: PromptImage) -> list[int | str]:
        return self.tower.vision.run(Grid(image.rows, image.columns))

    def _seen_by_all(self, image: SlotImage) -> Sight:
        """As `_sight`. If a rank raises, all do: otherwise one would leave out a row that others compute."""
        try:
            sight = self._sight(image)
        except ImageError:
            self._ranks.least(False)
            raise
        if not self._ranks.least(True):
            raise ImageError(NOT_BY_ALL)
        return sight

    def _sight(self, image: SlotImage) -> Sight:
        """What is seen in an image; a step that comes before it is seen waits. Raises `ImageError`."""
        if image.sight is None:
            if not image.data:
                raise ImageError(GONE)
            image.sight = Future()
            self._thread.submit(self._look_at, [image])
        if image.sight.done() or self.turns is None:
            return image.sight.result()
        with self.turns.without():
            return image.sight.result()

    def _look_at(self, images: Sequence[SlotImage], told: Callable[[], None] = _go_on) -> None:
        """Look at the first one, in the thread that looks. The others come behind those of other sequences.

        `told`: is called in the end.
        """
        wanted = [each for each in images if each.slots and each.sight is not None]
        if wanted:
            sight = wanted[0].sight
            assert sight is not None
            try:
                sight.set_result(self._seen(wanted[0]))
            except Exception as error:
                sight.set_exception(error)
        if len(wanted) > 1:
            with suppress(RuntimeError):  # the process ends
                self._thread.submit(self._look_at, wanted[1:], told)
        else:
            told()

    def _seen(self, image: SlotImage) -> Sight:
        """What is seen in an image. It waits in main memory for its steps. Raises `ImageError`."""
        prepared = self.tower.prepare(image.data, image.grid)
        try:
            with self.turns or nullcontext(), self.watch.measuring():
                sight = self.tower.see(prepared).to(MAIN_MEMORY)
        except Exception as error:  # of its size, say; a device that is lost is found by the next step
            raise ImageError(f"an image cannot be seen: {line_of(error)}") from error
        if len(sight.vectors) != len(image.placeholders):
            raise ImageError(f"{len(sight.vectors)} are seen of {len(image.placeholders)}")
        return sight

    def _set_shift(self, slot: int, shift: int) -> None:
        if shift == self.shifts[slot]:
            return
        self.shifts[slot] = shift
        if self.device_shifts is not None:
            self.device_shifts[slot] = shift
