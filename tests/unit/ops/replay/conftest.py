"""A scheduler on tape and a real runner of a random model behind it."""

from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.memory.host import HostPages
from gpu_worker.step.runner import Runner
from proto.recording_pb2 import Recording
from proto.sampling import greedy
from proto.worker_pb2 import WorkerReady
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.request import Request
from scheduler_svc.recording import tape
from scheduler_svc.recording.tape import RecordedScheduler
from scheduler_svc.wire import limits_from, plan_to, result_from
from tests.unit.gpu_worker.conftest import llama, make_runner

READY = WorkerReady(
    num_blocks=64,
    block_size=4,
    max_slots=8,
    max_model_len=64,
    max_step_tokens=64,
    vocab_size=97,
    host_blocks=24,
    swap_block_us=1,
    token_us=10,
    embedding_size=32,
)


@pytest.fixture(scope="session")
def new_runner(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Runner]:
    """Makes runners of one random model, in the sizes of `READY`."""
    directory: Path = tmp_path_factory.mktemp("model")
    llama().save_pretrained(directory)

    def make() -> Runner:
        runner = make_runner(directory, ReferenceKernels())
        runner.host = HostPages(runner.caches, READY.host_blocks)
        return runner

    return make


@pytest.fixture(scope="session")
def recording(new_runner: Callable[[], Runner]) -> SimpleNamespace:
    """A recording that begins in the middle of much work; `sampled`: tokens that all requests got."""
    usual, tape.SEGMENT_BYTES = tape.SEGMENT_BYTES, 40_000
    try:
        return _recorded(new_runner())
    finally:
        tape.SEGMENT_BYTES = usual


def _recorded(runner: Runner) -> SimpleNamespace:
    chance = Random(3)
    fleet = Fleet(1000, speculation="ngram", make=RecordedScheduler)
    scheduler, _ = fleet.add_worker(limits_from(READY))
    assert isinstance(scheduler, RecordedScheduler)
    scheduler.tape.worker = READY
    shared = [[chance.randrange(9) for _ in range(24)] for _ in range(3)]
    results: deque[Any] = deque()
    turn = -1
    while (turn := turn + 1) < 150 or not scheduler.idle:
        if turn % 3 == 0 and turn < 150:
            prompt = [*chance.choice(shared)[: chance.randrange(1, 24)], chance.randrange(97)]
            sampling = greedy(temperature=chance.choice([0.0, 1.0]), seed=turn)
            fields: dict[str, Any] = {"n": chance.choice([1, 1, 3]), "tenant": chance.choice("ab")}
            fleet.accept(Request(f"r{turn}", array("i", prompt), max_tokens=20, sampling=sampling, **fields))
        if turn % 20 == 7 and scheduler.state.groups:
            fleet.cancel(next(iter(scheduler.state.groups)))
        while scheduler.in_flight < 2 and (plan := scheduler.plan()) is not None:
            message = plan_to(plan)
            scheduler.tape.planned(message)
            results.append(runner.execute(message))
        if results:
            message = results.popleft()
            scheduler.tape.came(message)
            result, _ = result_from(message)
            fleet.settle(scheduler, scheduler.complete(result))
            scheduler.check_integrity()
    assert scheduler.tape.segments > 2, "it begins with the first step"
    made = scheduler.tape.take().recording()
    made.worker.CopyFrom(READY)
    made.reason = "a test wants it"
    return SimpleNamespace(message=Recording.FromString(made.SerializeToString()), steps=scheduler.step)


@pytest.fixture
def copy(recording: SimpleNamespace) -> Recording:
    """A recording that may be changed."""
    copied = Recording()
    copied.CopyFrom(recording.message)
    return copied
