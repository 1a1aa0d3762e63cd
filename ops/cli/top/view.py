"""How the inside of a deployment looks in a terminal."""

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from gateway.upstream.picture import Change, Picture, WorkerPicture

RATE_SECONDS = 5.0
"""Time over which rates are means."""
RUNNING = ("prefill", "decode")
_COLOURS = {"prefill": "cyan", "decode": "dark_orange", "preempted": "red"}
_SAID = ("model", "workers", "device", "dtype", "memory", "slow", "stopping")
"""What a lease says for people."""
_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)))
"""Characters that would steer the terminal: they are left out."""
_OTHER_LINES = 14
"""Lines of the screen that are not the list of requests, processes not counted."""


class View:
    """All changes put together, drawn as they are now. It may be drawn while changes come."""

    def __init__(self, url: str, live: bool) -> None:
        """`live`: it goes on, so that there are rates."""
        self._live = live
        self.away = False
        """The gateway does not tell anything at the moment."""
        self._url = url
        self._picture = Picture()
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int, int]] = deque()
        """When steps were told, how many, and the tokens that they gained."""
        self._since = math.inf
        """When the first change came."""

    def apply(self, change: Change, now: float) -> None:
        """Take in a change that came at the time `now`. Seconds."""
        with self._lock:
            self.away = False
            self._since = min(self._since, now)
            known = change.get("scheduler") in self._picture.schedulers
            self._picture.apply(change)
            steps = [step for worker in change.get("workers", ()) for step in worker["steps"]]
            if known and steps:  # steps of before are told to one who begins to look: they are no rate
                self._recent.append((now, len(steps), sum(step.get("sampled", 0) for step in steps)))

    @property
    def whole(self) -> bool:
        """Whether every scheduler that has a lease has told how things are."""
        processes = self._picture.processes["processes"]
        schedulers = {each["id"] for each in processes if each["service"] == "scheduler"}
        return bool(processes) and schedulers <= self._picture.schedulers.keys()

    def rates(self, now: float) -> tuple[float, float]:
        """Steps and tokens a second."""
        while self._recent and self._recent[0][0] < now - RATE_SECONDS:
            self._recent.popleft()
        seconds = min(RATE_SECONDS, max(1.0, now - self._since))
        steps = sum(count for _, count, _ in self._recent)
        return steps / seconds, sum(tokens for *_, tokens in self._recent) / seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            width = options.max_width
            room = (options.height or 1000) - _OTHER_LINES - len(self._picture.processes["processes"])
            requests = self._requests(max(3, room))
            yield Group(self._head(), *self._memory(width), Text(), requests, Text(), self._processes())

    def _head(self) -> Text:
        picture, sequences = self._picture, [*self._sequences()]
        running = sum(sequence["state"] in RUNNING for sequence in sequences)
        waiting = max(len(sequences) - running, self._total("waiting"))
        steps, tokens = self.rates(time.monotonic())
        asked = self._total("prompt_tokens")
        hits = f"{self._total('cached_tokens') / asked:.0%}" if asked else "-"
        models = ", ".join(sorted({str(known["model"]) for known in picture.schedulers.values()}))
        line = _text(f"{models or 'no scheduler'} at {self._url}", style="bold")
        if self.away:
            line.append("  does not answer", style="bold red")
        facts = {
            "running": running,
            "waiting": waiting,
            **({"tokens/s": f"{tokens:.0f}", "steps/s": f"{steps:.0f}"} if self._live else {}),
            "prompt tokens cached": hits,
            "preemptions": self._total("preemptions"),
        }
        return line.append(
            "\n" + "   ".join(f"{value} {name}" for name, value in facts.items()), style="default"
        )

    def _total(self, name: str) -> int:
        return sum(known["totals"][name] for known in self._picture.schedulers.values())

    def _sequences(self) -> Iterator[Change]:
        for worker in self._picture.workers.values():
            yield from worker.sequences.values()

    def _memory(self, width: int) -> Iterable[Text]:
        schedulers = self._picture.schedulers
        several = len({known["model"] for known in schedulers.values()}) > 1
        for (scheduler, number), worker in self._picture.workers.items():
            model = f" of {schedulers[scheduler]['model']}" if several else ""
            yield Text()
            yield _pool(f"worker {number}{model}", worker)
            yield _bar(worker, width)

    def _requests(self, most: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name, justify in (("REQUEST", "left"), ("TENANT", "left"), ("STATE", "left")):
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for name in ("PROMPT", "CACHED", "ANSWER", "BLOCKS"):
            table.add_column(name, justify="right", no_wrap=True)
        found = sorted(self._sequences(), key=lambda each: (each["state"] not in RUNNING, each["number"]))
        for each in found[:most]:
            index = f"·{each['index']}" if each["index"] else ""
            table.add_row(
                _text(f"{each['request_id'][:12]}{index}"),
                _text(each["tenant"][:24]),
                Text(each["state"], style=_COLOURS.get(each["state"], "")),
                str(each["prompt_tokens"]),
                str(each["cached_tokens"]),
                f"{max(0, each['tokens'] - each['prompt_tokens'])}/{each['limit'] - each['prompt_tokens']}",
                str(len(each["blocks"]) - each["dropped"]),
            )
        if len(found) > most:
            table.add_row(Text(f"and {len(found) - most} more", style="dim"))
        return table

    def _processes(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("PROCESS", "PID", "LEASE", "INFO"):
            table.add_column(name, no_wrap=name != "INFO")
        for each in self._picture.processes["processes"]:
            said = "  ".join(f"{name}={each['info'][name]}" for name in _SAID if each["info"].get(name))
            table.add_row(_text(each["id"]), str(each["pid"]), str(each["epoch"]), _text(said))
        for each in self._picture.processes["ended"][:3]:
            gone = time.strftime("%H:%M:%S", time.localtime(each["ended"]))
            table.add_row(_text(each["id"], style="red"), str(each["pid"]), "-", Text(f"gone at {gone}"))
        return table


def _text(text: str, style: str = "") -> Text:
    """A text that somebody else has chosen."""
    return Text(text.translate(_CONTROLS), style=style)


def counts(worker: WorkerPicture) -> dict[str, int]:
    """Blocks in several tables, blocks in one, blocks that are cached and in none, and free ones."""
    states = worker.states.values()
    shared, cached = sum(state >= 4 for state in states), sum(state == 1 for state in states)
    own = len(states) - shared - cached
    return {
        "shared": shared,
        "own": own,
        "cached": cached,
        "free": worker.limits.get("blocks", 0) - len(states),
    }


def _pool(name: str, worker: WorkerPicture) -> Text:
    found, limits = counts(worker), worker.limits
    text = f"{name}: {found['shared'] + found['own']} of {limits.get('blocks', 0)} blocks in tables"
    text += f", {found['shared']} of them shared; {found['cached']} cached, {found['free']} free"
    if limits.get("host_blocks"):
        text += f"; {worker.host_used} of {limits['host_blocks']} on the host"
    if worker.steps:
        text += f"; last step {worker.steps[-1].get('duration_us', 0) / 1000:.1f} ms"
    return _text(text)


def _bar(worker: WorkerPicture, width: int) -> Text:
    """The pool as a line of `width` cells: each kind of block has as much of it as of the pool."""
    found, bar, done, end = counts(worker), Text(), 0, 0
    whole = max(1, sum(found.values()))
    kinds = (
        ("shared", "█", "cyan"),
        ("own", "█", "dark_orange"),
        ("cached", "▒", "yellow"),
        ("free", "░", "dim"),
    )
    for kind, sign, style in kinds:
        end += found[kind]
        cells = end * width // whole - done
        bar.append(sign * cells, style=style)
        done += cells
    return bar
