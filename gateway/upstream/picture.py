"""What is inside a deployment, as JSON objects that tell of changes.

A picture is the state that all changes so far lead to. Who begins to look gets it as a few changes.

    change      {"begin": true}                                   forget what was told
                {"processes": [...], "ended": [...]}              who lives, and who has gone, newest first
                {"scheduler": id, "away": true}                   nothing of it holds any more
                {"scheduler": id, "model": name, "totals": {...}, "lost": [number, ...], "workers": [
                    {"number", "limits", "blocks", "states", "evicted", "host_used", "sequences", "gone",
                     "steps"}
                ]}

Fields are those of inside.proto. A sequence's table is "kept" and "added"; its tokens are not told.
"""

from collections import deque
from typing import Any

from google.protobuf.json_format import MessageToDict

from proto.arrays import unpack
from proto.inside_pb2 import Look, SequenceChange, Step, WorkerChange

STEPS_KEPT = 120
"""Steps of a worker that one who begins to look is told."""

Change = dict[str, Any]
_FIXED = ("request_id", "index", "tenant", "user", "trace_id", "prompt_tokens", "limit")
"""Fields of a sequence that are told once."""
_ARRAYS = ("copied_from", "copied_to", "swapped_out", "swapped_in")


def change_of(look: Look, model: str) -> Change:
    """What a scheduler tells, without tokens."""
    return {
        "scheduler": look.scheduler,
        "model": model,
        "totals": _plain(look.totals),
        "lost": list(look.lost),
        "workers": [_worker(worker) for worker in look.workers],
    }


def _worker(worker: WorkerChange) -> Change:
    change: Change = {
        "number": worker.number,
        "blocks": list(unpack(worker.blocks)),
        "states": list(unpack(worker.states)),
        "evicted": list(unpack(worker.evicted)),
        "host_used": worker.host_used,
        "sequences": [_sequence(sequence) for sequence in worker.sequences],
        "gone": list(worker.gone),
        "steps": [_step(step) for step in worker.steps],
    }
    if worker.HasField("limits"):
        change["limits"] = _plain(worker.limits)
    return change


def _sequence(told: SequenceChange) -> Change:
    change: Change = {"number": told.number}
    if told.request_id:
        change |= {name: getattr(told, name) for name in _FIXED}
    change |= {name: getattr(told, name) for name in ("state", "cached_tokens", "computed", "tokens")}
    change |= {"kept": told.kept_blocks, "added": list(unpack(told.added_blocks))}
    return change | {"dropped": told.dropped_blocks}


def _step(step: Step) -> Change:
    """Counts that are 0 and arrays that are empty are left out."""
    return {
        field.name: list(unpack(value)) if field.name in _ARRAYS else value
        for field, value in step.ListFields()
    }


def _plain(message: Any) -> Change:
    found = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: int(value) for name, value in found.items()}


class WorkerPicture:
    """One worker."""

    def __init__(self) -> None:
        self.limits: Change = {}
        self.states: dict[int, int] = {}
        """Of the blocks that are not empty."""
        self.host_used = 0
        self.sequences: dict[int, Change] = {}
        """Each with its table as "blocks"."""
        self.steps: deque[Change] = deque(maxlen=STEPS_KEPT)

    def apply(self, change: Change) -> None:
        self.limits = change.get("limits", self.limits)
        for block, state in zip(change["blocks"], change["states"], strict=True):
            if state:
                self.states[block] = state
            else:
                self.states.pop(block, None)
        self.host_used = change["host_used"]
        for number in change["gone"]:
            self.sequences.pop(number, None)
        for told in change["sequences"]:
            known = self.sequences.setdefault(told["number"], {"blocks": []})
            known["blocks"] = known["blocks"][: told["kept"]] + told["added"]
            known.update((name, value) for name, value in told.items() if name not in ("kept", "added"))
        self.steps.extend(change["steps"])

    def whole(self, number: int) -> Change:
        """The change that makes this of nothing."""
        return {
            "number": number,
            "limits": self.limits,
            "blocks": list(self.states),
            "states": list(self.states.values()),
            "evicted": [],
            "host_used": self.host_used,
            "sequences": [_as_change(sequence) for sequence in self.sequences.values()],
            "gone": [],
            "steps": list(self.steps),
        }


def _as_change(sequence: Change) -> Change:
    rest = {name: value for name, value in sequence.items() if name != "blocks"}
    return {**rest, "kept": 0, "added": sequence["blocks"]}


class Picture:
    """A deployment."""

    def __init__(self) -> None:
        self.processes: Change = {"processes": [], "ended": []}
        self.schedulers: dict[str, Change] = {}
        """Model and totals of each scheduler."""
        self.workers: dict[tuple[str, int], WorkerPicture] = {}
        """By scheduler and number."""

    def apply(self, change: Change) -> None:
        """Take in a change."""
        if "begin" in change:
            self.schedulers, self.workers = {}, {}
        if "processes" in change:
            self.processes = change
        scheduler = change.get("scheduler")
        if scheduler is None:
            return
        if change.get("away"):
            self.schedulers.pop(scheduler, None)
            self.workers = {key: value for key, value in self.workers.items() if key[0] != scheduler}
            return
        self.schedulers[scheduler] = {"model": change["model"], "totals": change["totals"]}
        for number in change["lost"]:
            self.workers.pop((scheduler, number), None)
        for worker in change["workers"]:
            self.workers.setdefault((scheduler, worker["number"]), WorkerPicture()).apply(worker)

    def whole(self) -> list[Change]:
        """Changes that make this of nothing."""
        changes: list[Change] = [{"begin": True}, self.processes]
        for scheduler, known in self.schedulers.items():
            workers = [worker.whole(key[1]) for key, worker in self.workers.items() if key[0] == scheduler]
            changes.append({"scheduler": scheduler, **known, "lost": [], "workers": workers})
        return changes
