"""Plans from the middle of a call, cut to what a worker can compute that has not seen the plans before them.

Sequences that had a slot when the recording begins are left out, with their rows. What a later sequence found
in the cache from before is computed first, in steps of its own: its tokens are in the plan that admits it.
With an attention window such blocks cannot be computed alone, so that sequence is left out, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from proto.arrays import pack, unpack
from proto.worker_pb2 import NewSlot, Rows, StepPlan, WorkerReady


@dataclass(slots=True)
class Cut:
    """A plan without what is not known."""

    plan: StepPlan
    before: list[StepPlan] = field(default_factory=list)
    """Steps that compute what it takes from the cache."""
    rows: list[int] = field(default_factory=list)
    """Indices in the recorded plan of the rows that are left."""
    all_rows: int = 0
    """Number of rows in the recorded plan."""


class Cutter:
    """Follows all plans, in order. Their numbers count the steps that a worker is given."""

    def __init__(self, worker: WorkerReady, host_slots: int) -> None:
        """`worker`: what the recorded one had to offer. `host_slots`: that the worker of the replay has."""
        self._size, self._window = worker.block_size, worker.window
        self._longest_step = worker.max_step_tokens
        self._swaps = host_slots >= worker.host_blocks > 0
        self._tables: dict[int, list[int]] = {}
        """Block tables of the slots whose sequences are known."""
        self._written: set[int] = set()
        """Blocks whose contents are known."""
        self._on_host: set[int] = set()
        """Host slots whose contents are known."""
        self._grammars: set[int] = set()
        self._steps = 0

    def cut(self, plan: StepPlan) -> Cut:
        """The next plan."""
        cut = StepPlan()
        freed = [slot for slot in unpack(plan.freed_slots) if self._tables.pop(slot, None) is not None]
        dropped = [number for number in unpack(plan.dropped_grammars) if number in self._grammars]
        self._grammars.difference_update(dropped)
        self._grammars.update(new.number for new in plan.new_grammars)
        self._swap(plan, cut)
        missing = [
            (new, place) for new in plan.new_slots if (place := self._admit(new, plan, cut)) is not None
        ]
        self._change_tables(plan, cut)
        self._copy(plan, cut)
        found = Cut(cut, all_rows=len(plan.rows.samples))
        found.rows = self._rows(plan, cut)
        if missing:
            self._keep_from_host(cut, missing)
            found.before = list(self._computed_before(missing, freed, dropped, plan))
            freed, dropped = [new.slot for new, _ in missing], []
        else:
            cut.new_grammars.extend(plan.new_grammars)
        cut.freed_slots, cut.dropped_grammars = pack(freed), pack(dropped)
        self._steps += 1
        cut.step = self._steps
        return found

    def _swap(self, plan: StepPlan, cut: StepPlan) -> None:
        outs, ins = _columns(plan.swap_out), _columns(plan.swap_in)
        known = [self._swaps and block in self._written for block in outs["blocks"]]
        for host_slot, kept in zip(outs["host_slots"], known, strict=True):
            (self._on_host.add if kept else self._on_host.discard)(host_slot)
        _put(cut.swap_out, outs, known)
        known = [self._swaps and slot in self._on_host for slot in ins["host_slots"]]
        for block, kept in zip(ins["blocks"], known, strict=True):
            (self._written.add if kept else self._written.discard)(block)
        _put(cut.swap_in, ins, known)

    def _admit(self, new: NewSlot, plan: StepPlan, cut: StepPlan) -> int | None:
        """Take a new sequence if it can be followed. The number of its first block that must be computed, or
        None if there is none."""
        self._tables.pop(new.slot, None)
        blocks, place = unpack(new.block_ids).tolist(), None
        if new.grammar and new.grammar not in self._grammars:
            return None
        if new.forked_tokens:
            parent = self._tables.get(new.forked_from)
            if parent is None:
                return None
            blocks = parent[: new.forked_tokens // self._size] + blocks
        else:
            copied = _copied(plan)
            known = [copied.get(block, block) in self._written for block in blocks]
            place = known.index(False) if False in known else None
            # How much of a partial block is to be computed, only the sequence's first row tells.
            partial = bool(blocks) and blocks[-1] in copied
            told = not partial or new.slot in unpack(plan.rows.slots)
            if place is not None and (self._window or not told):
                return None
        self._tables[new.slot] = blocks
        cut.new_slots.append(new)
        return place

    def _change_tables(self, plan: StepPlan, cut: StepPlan) -> None:
        tables, cuts, appends = self._tables, _columns(plan.table_cuts), _columns(plan.table_appends)
        for slot, length in zip(cuts["slots"], cuts["lengths"], strict=True):
            if slot in tables:
                del tables[slot][length:]
        for slot, block in zip(appends["slots"], appends["blocks"], strict=True):
            self._written.discard(block)  # something else will be written there
            if slot in tables:
                tables[slot].append(block)
        given = _columns(plan.given_tokens)
        for target, columns in (
            (cut.table_cuts, cuts),
            (cut.table_appends, appends),
            (cut.given_tokens, given),
        ):
            _put(target, columns, [slot in tables for slot in columns["slots"]])

    def _copy(self, plan: StepPlan, cut: StepPlan) -> None:
        copies = _columns(plan.copies)
        known = [source in self._written for source in copies["sources"]]
        for target, kept in zip(copies["targets"], known, strict=True):
            (self._written.add if kept else self._written.discard)(target)
        _put(cut.copies, copies, known)

    def _rows(self, plan: StepPlan, cut: StepPlan) -> list[int]:
        """Indices of the rows that are kept."""
        rows = _columns(plan.rows) | {"samples": list(plan.rows.samples)}
        kept = [slot in self._tables for slot in rows["slots"]]
        drafts, left = iter(unpack(plan.draft_tokens)), list[int]()
        for number, samples in enumerate(rows["samples"]):
            some = [next(drafts) for _ in range(max(1, samples) - 1)]
            if kept[number]:
                left += some
                start, end = rows["starts"][number], rows["starts"][number] + rows["counts"][number]
                table = self._tables[rows["slots"][number]]
                self._written.update(table[start // self._size : -(-end // self._size)])
        cut.draft_tokens = pack(left)
        _put(cut.rows, rows, kept)
        indices = [number for number, keep in enumerate(kept) if keep]
        prompts = _columns(plan.prompt_rows)
        told = [row in indices for row in prompts["rows"]]
        prompts["rows"] = [indices.index(row) if row in indices else -1 for row in prompts["rows"]]
        _put(cut.prompt_rows, prompts, told)
        return indices

    def _keep_from_host(self, cut: StepPlan, missing: Sequence[tuple[NewSlot, int]]) -> None:
        """What is computed before the plan must not go to the host in place of what was there."""
        computed = {block for new, _ in missing for block in unpack(new.block_ids)}
        outs = _columns(cut.swap_out)
        kept = [block not in computed for block in outs["blocks"]]
        lost = zip(outs["host_slots"], kept, strict=True)
        self._on_host.difference_update(slot for slot, keep in lost if not keep)
        cut.ClearField("swap_out")
        _put(cut.swap_out, outs, kept)

    def _computed_before(
        self, missing: Sequence[tuple[NewSlot, int]], freed: list[int], dropped: list[int], plan: StepPlan
    ) -> Iterator[StepPlan]:
        """Steps in which sequences compute, in the slots that they will get, what they found in the cache."""
        changes = StepPlan(freed_slots=pack(freed), dropped_grammars=pack(dropped))
        changes.new_grammars.extend(plan.new_grammars)
        copied, recorded = _copied(plan), _columns(plan.rows)
        for new, place in missing:
            changes.new_slots.append(new)
            blocks = unpack(new.block_ids).tolist()
            self._written.update(blocks)
            start, end = place * self._size, len(blocks) * self._size
            if blocks[-1] in copied:
                end = recorded["starts"][recorded["slots"].index(new.slot)]
            while start < end:
                count = min(self._longest_step, end - start)
                rows = Rows(slots=pack([new.slot]), starts=pack([start]), counts=pack([count]), samples=b"\0")
                self._steps += 1
                step = StepPlan(step=self._steps, rows=rows)
                step.MergeFrom(changes)
                changes = StepPlan()
                yield step
                start += count


def _copied(plan: StepPlan) -> dict[int, int]:
    """Sources of the blocks that the plan copies, by target."""
    copies = _columns(plan.copies)
    return dict(zip(copies["targets"], copies["sources"], strict=True))


def _columns(table: Any) -> dict[str, list[int]]:
    """The columns of a table of int32 by name."""
    fields = (column.name for column in table.DESCRIPTOR.fields if column.name != "samples")
    return {name: unpack(getattr(table, name)).tolist() for name in fields}


def _put(table: Any, columns: dict[str, list[int]], kept: Sequence[bool]) -> None:
    """Fill a table with the lines that are kept. Without one it stays unset."""
    if not any(kept):
        return
    for name, numbers in columns.items():
        left = [number for number, keep in zip(numbers, kept, strict=True) if keep]
        setattr(table, name, bytes(left) if name == "samples" else pack(left))
