"""What a process has to say, gathered over one turn of its event loop.

Everything for one inbox becomes one entry, and all entries of the turn one pipeline. A step that
produces a token for 256 calls of one peer costs one XADD.
"""

import asyncio

from proto.rpc.bus import Added, Batch, Letter, Link
from proto.rpc.frames import encode
from proto.wire_pb2 import Frame


class Outbox:
    """Takes frames at any time and posts them when the turn is over."""

    def __init__(self, link: Link, process_id: str) -> None:
        self.epoch = 1
        self._link = link
        self._id = process_id
        self._loop = asyncio.get_running_loop()
        self._frames: dict[str, list[Frame]] = {}
        self._calls: dict[int, tuple[str, list[Frame], Added]] = {}
        self._batch = Batch()
        self._scheduled = False

    def to_peer(self, process_id: str, frame: Frame) -> None:
        """A frame for another process's inbox."""
        self._frames.setdefault(process_id, []).append(frame)
        self._schedule()

    def open(self, door: str, frame: Frame, added: Added) -> None:
        """The first frame of a call, for a front door; `added` gets its entry's id."""
        self._calls[frame.call] = (door, [frame], added)
        self._schedule()

    def along(self, frame: Frame) -> bool:
        """Let a frame travel in its call's opening entry; False if that has left already."""
        opening = self._calls.get(frame.call)
        if opening is None:
            return False
        opening[1].append(frame)
        return True

    def recall(self, call: int) -> bool:
        """Take back a call that has not left yet; False if it has."""
        return self._calls.pop(call, None) is not None

    def acknowledge(self, door: str, entry: str) -> None:
        self._batch.acks.append((door, entry))
        self._schedule()

    def delete(self, door: str, entry: str) -> None:
        self._batch.deletes.append((door, entry))
        self._schedule()

    def trim(self, stream: str, entry: str) -> None:
        self._batch.trims.append((stream, entry))
        self._schedule()

    def bury(self, letter: Letter) -> None:
        """Put a malformed entry where a person can look at it."""
        self._batch.letters.append(letter)
        self._schedule()

    def drop(self) -> None:
        """Forget the frames that have not left: they belong to an epoch that is over."""
        self._frames.clear()
        self._calls.clear()

    def flush(self) -> None:
        """Post what there is now."""
        self._scheduled = False
        batch, self._batch = self._batch, Batch()
        calls, self._calls = self._calls, {}
        frames, self._frames = self._frames, {}
        batch.adds += [
            (door, encode(self._id, self.epoch, opening), added) for door, opening, added in calls.values()
        ]
        batch.adds += [
            (f"inbox:{peer}", encode(self._id, self.epoch, one), None) for peer, one in frames.items()
        ]
        if batch:
            self._link.post(batch)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
