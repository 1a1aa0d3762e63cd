"""A process whose event loop is blocked ends; one that was stopped, or only slow, does not."""

import signal
import subprocess
import sys
import time

BLOCKED = """
import asyncio, time
from ops.runtime.watchdog import watch_loop

def stuck():
    time.sleep(30)

async def main():
    watch_loop(patience=1.2)
    for _ in range(8):
        time.sleep(0.2)
        await asyncio.sleep(0)
    print("slow", flush=True)
    stuck()

asyncio.run(main())
"""
WAITING = """
import asyncio
from ops.runtime.watchdog import watch_loop

async def main():
    watch_loop(patience=1.2)
    print("waiting", flush=True)
    await asyncio.sleep(2.5)

asyncio.run(main())
print("done")
"""
UNENDING = """
import asyncio, time
from ops.runtime.watchdog import watch_loop

async def main():
    watch_loop(patience=0.6)

asyncio.run(main())
time.sleep(30)
"""


def run(script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_a_blocked_loop_ends_the_process() -> None:
    ended = run(BLOCKED)
    assert (ended.returncode, ended.stdout) == (1, "slow\n")
    assert "the event loop has not turned for 1 s: this process ends" in ended.stderr
    assert "in stuck" in ended.stderr, "it says where"


def test_a_process_that_was_stopped_goes_on() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60)[0] == "done\n"
    assert process.returncode == 0


def test_a_process_that_cannot_end_is_ended() -> None:
    assert run(UNENDING).returncode == 1
