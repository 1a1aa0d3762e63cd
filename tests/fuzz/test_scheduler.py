"""What a scheduler reads: requests of the tokenizer, and the answers of workers."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError

from proto.sampling_pb2 import LAST, BeamSearch
from proto.scheduler_pb2 import EmbedTokensRequest, GenerateRequest, SequenceSoFar
from proto.worker_pb2 import StepResult, WorkerReady
from scheduler_svc.core.errors import RequestRefused, WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.embedding import first_dimensions
from scheduler_svc.intake import embedding_from, request_from
from scheduler_svc.wire import limits_from, plan_to, response_to, result_from
from tests.support.mutate import cases, spoiled
from tests.unit.scheduler_svc.conftest import FakeWorkers, StrictWorker, make_limits, pack
from tests.unit.scheduler_svc.test_service import start

LIMITS = make_limits()


def test_requests() -> None:
    beams = BeamSearch(beam_width=2, length_penalty=1)
    resumed = [SequenceSoFar(index=0, tokens=pack([4, 5]), finished=False)]
    embedded = EmbedTokensRequest(request_id="e", tokens=pack([1, 2, 3]), pooling=LAST, dimensions=1)
    asked = [start([1, 2, 3], n=2, resumed=resumed), start([1, 2], temperature=0, beams=beams), start([1])]
    fleet = Fleet(LIMITS.max_step_tokens)
    scheduler, _ = fleet.add_worker(LIMITS)
    workers, answers = FakeWorkers(LIMITS), list[StepResult]()
    worker = StrictWorker(LIMITS, seed_of=lambda sampling: sampling.seed)
    for of in cases("request"):
        try:
            if of.random() < 0.2:
                request = embedding_from(EmbedTokensRequest.FromString(spoiled(of, embedded)), "")
            else:
                message = GenerateRequest.FromString(spoiled(of, of.choice(asked)))
                request = request_from(message.start, "")
        except (DecodeError, RequestRefused):
            continue
        group, _ = fleet.accept(request)
        for _ in range(2):
            while scheduler.in_flight < 2 and (plan := scheduler.plan()) is not None:
                answers.append(workers._execute(worker, plan_to(plan)))
            fleet.cancel(group)
        for answer in answers:
            fleet.settle(scheduler, scheduler.complete(result_from(answer)[0]))
        answers.clear()
        scheduler.check_integrity()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_results() -> None:
    """Whatever a worker answers: it is given up, and its requests are served by the next one."""
    beams = BeamSearch(beam_width=2, length_penalty=1)
    embedded = EmbedTokensRequest(tokens=pack([1, 2, 3, 4, 5]), pooling=LAST, dimensions=1)
    asked = [
        request_from(start([1, 2, 3], n=2, logprobs=2).start, ""),
        request_from(start([4, 5, 6, 7, 8], temperature=0, beams=beams).start, ""),
        request_from(start([1, 2, 3, 4]).start, ""),
        request_from(start([2, 2, 2, 2, 2, 2]).start, ""),  # gets drafts
        embedding_from(embedded, ""),
    ]
    for of in cases("result"):
        fleet, workers = Fleet(LIMITS.max_step_tokens, speculation="ngram"), FakeWorkers(LIMITS)
        groups = [fleet.accept(each)[0] for each in asked]
        open_groups, lies = set(groups), of.choice((1, 2, 3))
        scheduler, worker, steps = None, None, 0
        while open_groups:
            steps += 1
            assert steps < 1000, "no request waits for ever"
            if scheduler is None:
                scheduler, outcome = fleet.add_worker(LIMITS)
                worker = StrictWorker(LIMITS, seed_of=lambda sampling: sampling.seed)
                open_groups -= {group for group, _ in outcome.failed}
            lost = False
            plan = scheduler.plan()
            assert plan is not None
            honest = workers._execute(worker, plan_to(plan))
            lying = lies > 0 and of.random() < 0.3
            lies -= lying
            try:
                answer = StepResult.FromString(spoiled(of, honest)) if lying else honest
                result, logprobs = result_from(answer)
                outcome = scheduler.complete(result)
                fleet.settle(scheduler, outcome)
                response_to(outcome.gains, logprobs)
                for _, embedding in outcome.embedded:
                    first_dimensions(embedding, 1)
            except (DecodeError, WorkerFault):
                lost = True
            if lost:
                outcome = fleet.remove_worker(scheduler)
                scheduler = None
            elif not lying:
                scheduler.check_integrity()
            open_groups -= {group for group, _ in outcome.failed}
            open_groups = {group for group in open_groups if group.unfinished}
            if lying and not lost:  # it has told a lie that nobody can know: let it go
                outcome = fleet.remove_worker(scheduler)
                open_groups -= {group for group, _ in outcome.failed}
                scheduler = None


def test_offers() -> None:
    fields: dict[str, Any] = {name: getattr(LIMITS, name) for name in type(LIMITS).__slots__}
    good = WorkerReady(model="m", **fields)
    for of in cases("offer"):
        try:
            limits = limits_from(WorkerReady.FromString(spoiled(of, good)))
        except (DecodeError, WorkerFault):
            continue
        if limits.num_blocks + limits.host_blocks > 10**5:
            continue  # a large worker: to make its books takes a while, and is no error
        fleet = Fleet(LIMITS.max_step_tokens)
        scheduler, _ = fleet.add_worker(limits)
        group, outcome = fleet.accept(request_from(start([1, 2, 3]).start, ""))
        if not outcome.failed:
            scheduler.plan()
        fleet.remove_worker(scheduler)
        fleet.cancel(group)
