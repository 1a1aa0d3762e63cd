"""Turns go to who has waited longest."""

import threading
import time

from gpu_worker.machine.turns import Turns


def test_one_at_a_time_in_the_order_in_which_they_came() -> None:
    turns, found = Turns(), list[str]()

    def take(name: str) -> None:
        with turns:
            found.append(name)

    with turns:
        threads = []
        for name in "abc":
            threads.append(threading.Thread(target=take, args=(name,)))
            threads[-1].start()
            _until(lambda: len(turns._waiting) == len(threads))
        assert not found
    for thread in threads:
        thread.join(10)
    assert found == ["a", "b", "c"]


def test_a_long_computation_lets_others_between() -> None:
    turns, found, begun = Turns(), list[str](), threading.Event()

    def long() -> None:
        with turns:
            begun.set()
            for part in range(3):
                _until(lambda: len(turns._waiting) == 1)
                found.append(f"part {part}")
                turns.pass_on()

    thread = threading.Thread(target=long)
    thread.start()
    assert begun.wait(10)
    for step in range(3):
        with turns:
            found.append(f"step {step}")
            if step < 2:  # the other one waits again
                _until(lambda: len(turns._waiting) == 1)
    thread.join(10)
    assert found == [f"{kind} {number}" for number in range(3) for kind in ("part", "step")]


def test_who_gives_the_turn_away_gets_it_back() -> None:
    turns = Turns()
    with turns:
        with turns.without():
            with turns:
                assert turns._taken
            assert not turns._taken
        assert turns._taken
        turns.pass_on()  # nobody waits
        assert turns._taken
    assert not turns._taken


def _until(is_so: object) -> None:
    end = time.monotonic() + 10
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.001)
