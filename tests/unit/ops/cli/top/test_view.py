"""How the inside of a deployment looks in a terminal."""

import io
import time

import pytest
from rich.console import Console

from gateway.upstream.picture import Change, WorkerPicture
from ops.cli.top.view import RATE_SECONDS, View, counts


def drawn(view: View, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(view)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def processes(*services: str) -> Change:
    alive = [
        {"id": f"{service}-1", "service": service, "pid": 7, "epoch": 1, "info": {"model": "m"}}
        for service in services
    ]
    ended = [{"id": "worker-9", "service": "worker", "pid": 9, "epoch": 1, "info": {}, "ended": 0.0}]
    return {"processes": alive, "ended": ended}


def told(steps: int = 0, **sequence: object) -> Change:
    one = {
        **{"number": 1, "request_id": "0123456789abcdef", "index": 0, "tenant": "north", "state": "decode"},
        **{"prompt_tokens": 9, "cached_tokens": 4, "tokens": 12, "limit": 30, "computed": 11, "dropped": 0},
        **{"kept": 0, "added": [0, 1, 2], **sequence},
    }
    worker = {
        **{"number": 1, "blocks": [0, 1, 2, 3], "states": [5, 3, 2, 1], "evicted": [], "gone": []},
        **{"host_used": 3, "limits": {"blocks": 16, "block_size": 4, "host_blocks": 8}, "sequences": [one]},
        "steps": [{"number": place, "sampled": 2, "duration_us": 1500} for place in range(steps)],
    }
    totals = {"prompt_tokens": 100, "cached_tokens": 40, "preemptions": 6, "waiting": 0}
    return {"scheduler": "scheduler-1", "model": "m", "totals": totals, "lost": [], "workers": [worker]}


def test_everything_is_there_at_once() -> None:
    view = View("http://there", live=False)
    assert not view.whole
    for change in (processes("gateway", "scheduler"), told(steps=1)):
        view.apply(change, 0)
    assert view.whole
    text = drawn(view, width=140)
    assert "m at http://there" in text
    assert "1 running   0 waiting   40% prompt tokens cached   6 preemptions" in text
    assert (
        "worker 1: 3 of 16 blocks in tables, 1 of them shared; 1 cached, 12 free; 3 of 8 on the host" in text
    )
    assert "last step 1.5 ms" in text
    assert [line.split() for line in text.splitlines() if "0123456789ab" in line] == [
        ["0123456789ab", "north", "decode", "9", "4", "3/21", "3"]
    ]
    assert "scheduler-1" in text
    assert "worker-9" in text
    assert "gone at" in text


def test_pools_of_several_models_are_told_apart() -> None:
    view = View("u", live=False)
    for change in (told(), told() | {"scheduler": "scheduler-2", "model": "n"}):
        view.apply(change, 0)
    text = drawn(view, width=140)
    assert "worker 1 of m: 3 of 16 blocks" in text
    assert "worker 1 of n: 3 of 16 blocks" in text


def test_a_scheduler_that_has_not_told_yet_is_missing() -> None:
    view = View("u", live=False)
    view.apply({"begin": True}, 0)
    view.apply({"processes": [], "ended": []}, 0)
    assert not view.whole  # nobody has looked at the leases yet
    view.apply(processes("gateway", "scheduler"), 0)
    assert not view.whole
    assert "no scheduler" in drawn(view)


def test_rates_are_of_the_last_seconds_and_not_of_what_was_before() -> None:
    view = View("u", live=True)
    view.apply(told(steps=100), 10.0)
    assert view.rates(10.0) == (0, 0)
    view.apply(told(steps=10), 11.0)
    assert view.rates(12.0) == (5, 10), "of the two seconds since it began to look"
    assert view.rates(10.0 + RATE_SECONDS) == view.rates(11.0 + RATE_SECONDS) == (2, 4)
    assert view.rates(11.1 + RATE_SECONDS) == (0, 0)
    view.apply(told(steps=10), time.monotonic())
    assert "4 tokens/s   2 steps/s" in drawn(view)


def test_names_cannot_steer_the_terminal() -> None:
    view = View("u", live=False)
    view.apply(told(tenant="\x1b[31m[red]x"), 0)
    text = drawn(view)
    assert "\x1b" not in text
    assert "[red]x" in text


@pytest.mark.parametrize("width", [40, 100])
def test_the_bar_is_as_wide_as_the_screen(width: int) -> None:
    view = View("u", live=False)
    view.apply(told(), 0)
    (bar,) = (line for line in drawn(view, width).splitlines() if "░" in line)
    assert len(bar.rstrip()) == width
    assert bar.count("█") == 3 * width // 16
    assert bar.count("▒") == 4 * width // 16 - 3 * width // 16


def test_of_many_requests_those_are_shown_that_run() -> None:
    view = View("u", live=True)
    for number in range(60):
        state = "decode" if number == 59 else "waiting"
        view.apply(told(number=number, request_id=f"r{number:02}", state=state), 0)
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True, color_system=None)
    with console.screen() as screen:
        screen.update(view)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "r59" in text
    assert "more" in text


def test_blocks_are_counted_once() -> None:
    worker = WorkerPicture()
    worker.limits = {"blocks": 10}
    worker.states = {0: 4, 1: 5, 2: 2, 3: 3, 4: 1}
    assert counts(worker) == {"shared": 2, "own": 2, "cached": 1, "free": 5}
