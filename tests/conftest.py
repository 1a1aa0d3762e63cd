"""What tests of several parts need."""

import functools
import gc
import os
import secrets
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from ops.launcher.redis_server import RedisServer
from proto.rpc import line, node, redis_bus, resp
from proto.rpc.line import Line

# Compiled modules are kept, even where the environment says otherwise: tests start hundreds of processes, and
# one that compiles PyTorch's modules takes twice as long to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if os.environ.get("TEST_EMULATED"):
    os.environ["TRITON_INTERPRET"] = "0"  # kernels are compiled for a GPU and emulated: tests/support/ptx/
elif not Path("/dev/nvidiactl").exists():
    # Without a GPU its kernels run in Triton's interpreter; Triton asks for it when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# One thread of PyTorch's for each process that tests; workers of deployments say for themselves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# gRPC writes to the terminal, past pytest, when a channel's other end goes.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Deployments are started beside servers of gRPC that receive their traces: see tokenizer_svc/__init__.py.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# However slow the machine is, its Redis has not gone: nothing that tests run in their process gives it up.
line.REPLY_SECONDS = redis_bus.REPLY_SECONDS = resp.CONNECT_SECONDS = resp.COMING_SECONDS = (
    node.GOODBYE_SECONDS
) = 60

# Clients of httpx read the certificates of all authorities, and hundreds of tests make one. None needs them.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)

# The same examples each time, unless others are asked for.
# A slow machine may take its time.
PATIENT: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **PATIENT)
settings.register_profile("others", print_blob=True, **PATIENT)
settings.load_profile(os.environ.get("TEST_EXAMPLES", "same"))


class Scheduling(LoadFileScheduling):
    """Whose turn it is where several processes test at the same time (`pytest -n 4`).

    Tests of one file share what the file sets up, so they stay together. So do tests of whole deployments,
    and they come first: two deployments at once would take each other's cores, while one mostly waits, beside
    processes that compute. That of the alerts waits for nearly all of its time.
    """

    def _split_scope(self, nodeid: str) -> str:
        whole = nodeid.startswith(("tests/chaos/", "tests/e2e/")) and "test_alerts" not in nodeid
        scope: str = "deployments" if whole else super()._split_scope(nodeid)
        return scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    config.option.loadscopereorder = False  # in the order of the tree, which begins with deployments
    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test prints and logs may hold half a character, which xdist could not send."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are named by their number: those of gzip hold the second in which they were made, and processes
    of xdist that collect other names stop the run."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no collection of garbage looks through it again. They
    come seldom, or they take a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def pytest_sessionfinish() -> None:
    """What is left now ends with the process."""
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """What loads a model sets PyTorch's threads for the process. Tests after it would wait for the slowest of
    them in each product, however small: twenty times as long, where all cores compute."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


EMULATED = ("test_asked.py", "test_ptx_memory.py", "test_ptx_numbers.py")
"""Files of tests that need the PTX emulator."""


class NotAskedFor(pytest.File):
    """A file of tests that is skipped as a whole, without being imported."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip("needs the PTX emulator: `make emulated`, or TEST_EMULATED=90")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File | None:
    if module_path.name in EMULATED and not os.environ.get("TEST_EMULATED"):
        return NotAskedFor.from_parent(parent, path=module_path)
    return None  # collected as usual


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The bundled Redis, for the whole run. Tests keep apart by key prefixes of their own."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
def prefix() -> str:
    """Of keys in Redis that no other test has."""
    return f"test-{secrets.token_hex(4)}:"


@pytest_asyncio.fixture
async def line(redis_url: str) -> AsyncIterator[Line]:
    """A connection for commands."""
    line = Line(redis_url)
    yield line
    line.close()
