"""The service over plain gRPC on loopback, with strict fake workers behind it."""

import asyncio
import struct
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ops.runtime.trace_sampling import LONGEST_WAIT
from proto.images_pb2 import ImageFile, PromptImage
from proto.sampling import greedy
from proto.sampling_pb2 import MEAN, FinishReason, SamplingParams, StopConditions
from proto.scheduler_pb2 import EmbedTokensRequest, GenerateRequest, SequenceSoFar, Start
from proto.scheduler_pb2_grpc import SchedulerStub, add_SchedulerServicer_to_server
from proto.worker_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from scheduler_svc import engine, service
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.suspicion import MAX_DEATHS
from scheduler_svc.engine import Engine
from scheduler_svc.service import SchedulerService
from scheduler_svc.settings import SchedulerSettings
from tests.support.spans import exported_to


def pack(numbers: Any) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def unpack(packed: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(packed) // 4}i", packed))


class Stage:
    """Both servers, and a stub of the scheduler."""

    def __init__(self, fake: SimpleNamespace, limits: WorkerLimits, **settings: Any) -> None:
        self.fake = fake
        self.workers = fake.Workers(limits)
        self.settings = SchedulerSettings(model_name="m", **settings)
        self.announced: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    async def __aenter__(self) -> "Stage":
        self._worker_server = grpc.aio.server()
        add_WorkerServicer_to_server(self.workers, self._worker_server)
        port = self._worker_server.add_insecure_port("127.0.0.1:0")
        await self._worker_server.start()
        self._to_workers = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

        def announce(workers: int, longest: int) -> None:
            self.announced.put_nowait((workers, longest))

        self.failures: list[BaseException] = []
        self.engine = Engine(WorkerStub(self._to_workers), self.settings, announce, self.failures.append)
        self._running = asyncio.ensure_future(self.engine.run())
        self._server = grpc.aio.server()
        add_SchedulerServicer_to_server(SchedulerService(self.engine), self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub = SchedulerStub(self._channel)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._channel.close()
        await self._server.stop(None)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._to_workers.close()
        await self._worker_server.stop(None)
        assert not self.workers.faults
        assert not self.failures

    async def join(self, workers: int = 1) -> None:
        self.workers.join()
        while (await self.announced.get())[0] != workers:
            pass

    def all_free(self) -> bool:
        fleet = self.engine.fleet
        for scheduler in fleet.schedulers:
            scheduler.check_integrity()
        pools = [scheduler.state.batch.pool for scheduler in fleet.schedulers]
        return not fleet._home and all(pool.free_blocks == pool.num_blocks for pool in pools)


def seen(
    position: int, tokens: int, rows: int = 1, columns: int = 1, digest: bytes = bytes(32)
) -> PromptImage:
    file = ImageFile(name="a", digest=digest)
    return PromptImage(file=file, position=position, tokens=tokens, rows=rows, columns=columns)


def start(prompt: Any, *, seed: int = 7, max_tokens: int = 8, **fields: Any) -> GenerateRequest:
    sampling = greedy(temperature=1, seed=seed)
    for name in [name for name in fields if name in SamplingParams.DESCRIPTOR.fields_by_name]:
        setattr(sampling, name, fields.pop(name))
    stop = StopConditions(max_tokens=max_tokens, stop_token_ids=fields.pop("stop_token_ids", []))
    fields = {"request_id": "r", "n": 1, **fields}
    packed = prompt if isinstance(prompt, bytes) else pack(prompt)
    return GenerateRequest(start=Start(prompt_tokens=packed, sampling=sampling, stop=stop, **fields))


async def collect(call: Any) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    while (response := await call.read()) is not grpc.aio.EOF:
        for delta in response.deltas:
            tokens.setdefault(delta.index, []).extend(unpack(delta.tokens))
    return tokens


def scored(responses: list[Any]) -> list[int]:
    """The tokens of a prompt whose log probabilities came, each of which the worker has reported as such."""
    found = [token for response in responses for token in unpack(response.prompt.top_tokens)]
    logprobs = b"".join(response.prompt.logprobs for response in responses)
    assert logprobs == struct.pack(f"<{len(found)}f", *(-token for token in found))
    assert len(b"".join(response.prompt.ranks for response in responses)) == 4 * len(found)
    return found


async def settled(stage: Stage) -> None:
    """Until nothing is held any more."""
    while not stage.all_free():
        await asyncio.sleep(0.001)


@pytest.fixture
async def stage(fake: SimpleNamespace) -> AsyncIterator[Stage]:
    async with asyncio.timeout(60), Stage(fake, fake.limits(num_blocks=64, max_slots=8)) as stage:
        yield stage


def expected(stage: Stage, prompt: list[int], index: int = 0, seed: int = 7, **fields: Any) -> list[int]:
    request = stage.fake.request(prompt, seed=seed, **{"max_tokens": 8, **fields})
    return stage.fake.reference(request, index, stage.workers.limits.max_length)


async def test_streams_what_the_model_says(stage: Stage) -> None:
    await stage.join()
    responses = [each async for each in stage.stub.Generate(iter([start([1, 2, 3])]))]
    assert [unpack(each.deltas[0].tokens) for each in responses] == [[t] for t in expected(stage, [1, 2, 3])]
    reasons = [each.deltas[0].finish_reason for each in responses]
    assert reasons == [FinishReason.NOT_FINISHED] * 7 + [FinishReason.LENGTH]
    assert stage.all_free()


async def test_a_stop_token_is_delivered_and_ends(stage: Stage) -> None:
    await stage.join()
    third = expected(stage, [5])[2]
    responses = [each async for each in stage.stub.Generate(iter([start([5], stop_token_ids=[third])]))]
    assert unpack(responses[-1].deltas[0].tokens) == [third]
    assert responses[-1].deltas[0].finish_reason == FinishReason.STOP
    assert len(responses) <= 3
    await settled(stage)


async def test_many_at_once(stage: Stage) -> None:
    await stage.join()
    prompts = [[seed % 5] * (1 + 3 * seed % 17) for seed in range(24)]
    calls = [stage.stub.Generate(iter([start(prompt, seed=i)])) for i, prompt in enumerate(prompts)]
    answers = await asyncio.gather(*map(collect, calls))
    assert answers == [{0: expected(stage, prompt, seed=i)} for i, prompt in enumerate(prompts)]
    assert stage.all_free()


async def test_n_sequences_share_the_prompt(stage: Stage) -> None:
    await stage.join()
    prompt = list(range(12))
    tokens = await collect(stage.stub.Generate(iter([start(prompt, n=3)])))
    assert tokens == {index: expected(stage, prompt, index) for index in range(3)}
    # The first computes twelve tokens; the others fork from it, each with a copy of the third block.
    prefills = [count for plan in stage.workers.plans for count in unpack(plan.rows.counts) if count > 1]
    assert prefills == [12]
    assert sum(len(unpack(plan.copies.sources)) for plan in stage.workers.plans) == 2


async def test_the_second_request_reports_its_cached_tokens(stage: Stage) -> None:
    await stage.join()
    for cached in (0, 8):
        responses = [each async for each in stage.stub.Generate(iter([start([3] * 12)]))]
        assert responses[0].cached_tokens == cached
        assert not any(each.cached_tokens for each in responses[1:])
    other = [each async for each in stage.stub.Generate(iter([start([3] * 12, cache_salt="other")]))]
    assert other[0].cached_tokens == 0


async def test_what_became_of_a_prediction_is_told_once(stage: Stage) -> None:
    await stage.join()
    answer = expected(stage, [1, 2, 3], max_tokens=20)
    predicted = [token + (place == 7) for place, token in enumerate(answer)]
    call = stage.stub.Generate(iter([start([1, 2, 3], max_tokens=20, predicted_tokens=pack(predicted))]))
    responses = [each async for each in call]
    assert [token for each in responses for token in unpack(each.deltas[0].tokens)] == answer
    told = [each.predicted for each in responses if each.HasField("predicted")]
    assert sum(each.accepted for each in told) == 20 - len(responses)
    assert 5 <= sum(each.accepted for each in told) <= 19
    assert 0 < sum(each.rejected for each in told) <= 8


async def test_logprobs_go_with_their_tokens(stage: Stage) -> None:
    await stage.join()
    responses = [each async for each in stage.stub.Generate(iter([start([1], max_tokens=1, logprobs=2)]))]
    delta = responses[0].deltas[0]
    assert delta.logprobs[0].logprob == -0.5
    assert unpack(delta.logprobs[0].top_tokens) == [unpack(delta.tokens)[0], 0]
    assert struct.unpack("<2f", delta.logprobs[0].top_logprobs) == (-0.5, -1.5)


async def test_resumed_gives_the_rest(stage: Stage) -> None:
    await stage.join()
    whole = [expected(stage, [1, 2], index) for index in range(3)]
    so_far = [
        SequenceSoFar(index=0, tokens=pack(whole[0][:3])),
        SequenceSoFar(index=1, tokens=pack(whole[1][:5]), finished=True),
    ]
    tokens = await collect(stage.stub.Generate(iter([start([1, 2], n=3, resumed=so_far)])))
    assert tokens == {0: whole[0][3:], 2: whole[2]}


async def test_resumed_may_come_in_messages_of_its_own(stage: Stage) -> None:
    await stage.join()
    whole = [expected(stage, [1, 2], index) for index in range(3)]
    more = [
        GenerateRequest(resumed=SequenceSoFar(index=0, tokens=pack(whole[0][:3]))),
        GenerateRequest(resumed=SequenceSoFar(index=1, finished=True)),
    ]
    messages = [start([1, 2], n=3, more_resumed=2), *more]
    assert await collect(stage.stub.Generate(iter(messages))) == {0: whole[0][3:], 2: whole[2]}
    for wrong in (messages[:2], [start([1, 2], n=3, more_resumed=10**6)]):
        with pytest.raises(grpc.aio.AioRpcError, match="more_resumed"):
            await collect(stage.stub.Generate(iter(wrong)))


async def test_resumed_and_complete_ends_at_once(stage: Stage) -> None:
    await stage.join()
    whole = expected(stage, [1, 2])
    so_far = [SequenceSoFar(index=0, tokens=pack(whole))]
    responses = [each async for each in stage.stub.Generate(iter([start([1, 2], resumed=so_far)]))]
    assert [(each.deltas[0].tokens, each.deltas[0].finish_reason) for each in responses] == [
        (b"", FinishReason.LENGTH)
    ]
    done = [SequenceSoFar(index=0, tokens=pack(whole), finished=True)]
    assert await collect(stage.stub.Generate(iter([start([1, 2], resumed=done)]))) == {}


async def test_a_sequence_can_be_ended_early(stage: Stage) -> None:
    await stage.join()
    stage.workers.going.clear()
    call = stage.stub.Generate()
    await call.write(start([1, 2], n=2, max_tokens=40))
    await call.write(GenerateRequest(end_sequence=1))
    stage.workers.going.set()
    tokens = await collect(call)
    assert tokens[0] == expected(stage, [1, 2], max_tokens=40)
    assert tokens.get(1, []) == expected(stage, [1, 2], 1, max_tokens=40)[: len(tokens.get(1, []))]
    await settled(stage)


async def test_ending_all_sequences_ends_the_call(stage: Stage) -> None:
    await stage.join()
    stage.workers.spoil = lambda result: stage.workers.going.clear()  # no plan after the first
    call = stage.stub.Generate()
    await call.write(start([1, 2], max_tokens=0))
    await call.read()
    await call.write(GenerateRequest(end_sequence=0))
    stage.workers.spoil = lambda result: None
    stage.workers.going.set()
    await collect(call)
    assert await call.code() == grpc.StatusCode.OK
    await settled(stage)


async def test_a_cancelled_call_frees_everything(stage: Stage) -> None:
    await stage.join()
    call = stage.stub.Generate(iter([start([1] * 21, n=4, max_tokens=0)]))
    await call.read()
    stage.workers.going.clear()
    call.cancel()
    await settled(stage)
    stage.workers.going.set()
    assert (await collect(stage.stub.Generate(iter([start([2])]))))[0] == expected(stage, [2])


async def test_requests_wait_for_a_worker(stage: Stage) -> None:
    call = stage.stub.Generate(iter([start([4])]))
    refused = stage.stub.Generate(iter([start([4] * 100)]))
    while len(stage.engine._calls) < 2:
        await asyncio.sleep(0.001)
    await stage.join()
    assert (await collect(call))[0] == expected(stage, [4])
    with pytest.raises(grpc.aio.AioRpcError, match="prompt"):
        await collect(refused)


async def test_a_request_that_kills_workers_is_ended(stage: Stage) -> None:
    await stage.join()
    stage.workers.going.clear()
    call = stage.stub.Generate(iter([start([1])]))
    for _ in range(1 + MAX_DEATHS):
        while not any(scheduler.in_flight for scheduler in stage.engine.fleet.schedulers):
            await asyncio.sleep(0.001)
        stage.workers.kill()
        while (await stage.announced.get())[0] != 0:
            pass
        await stage.join()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(call)
    assert error.value.code() == grpc.StatusCode.ABORTED
    stage.workers.going.set()
    assert (await collect(stage.stub.Generate(iter([start([2])]))))[0] == expected(stage, [2])


async def test_a_row_error_ends_that_request_alone(stage: Stage) -> None:
    await stage.join()
    good = stage.stub.Generate(iter([start([1, 2])]))
    bad = stage.stub.Generate(iter([start([1, stage.fake.POISON, 3])]))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(bad)
    assert error.value.code() == grpc.StatusCode.INTERNAL
    assert (await collect(good))[0] == expected(stage, [1, 2])
    await settled(stage)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return exported_to(InMemorySpanExporter(), monkeypatch, service)


async def spans_of(spans: InMemorySpanExporter) -> list[Any]:
    """All spans of one request: its own is the last one to end."""
    while not any(span.parent is None or span.parent.is_remote for span in spans.get_finished_spans()):
        await asyncio.sleep(0.001)
    return list(spans.get_finished_spans())


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_request_is_one_span_between_caller_and_worker(
    stage: Stage, spans: InMemorySpanExporter
) -> None:
    await stage.join()
    caller = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
    await collect(stage.stub.Generate(iter([start([1] * 9, n=2, max_tokens=3)]), metadata=caller))
    *states, span = await spans_of(spans)
    assert (span.name, span.kind) == ("scheduler.generate", SpanKind.SERVER)
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.attributes["quire.request_id"] == "r"
    assert span.attributes["quire.prompt_tokens"] == 9
    assert span.attributes["quire.output_tokens"] == 6
    assert (span.attributes["quire.drafts"], span.attributes["quire.drafts_held"]) == (0, 0)
    named = [(each.attributes["quire.sequence_index"], each.name.partition(".")[2]) for each in states]
    assert [name for index, name in named if index == 0] == ["waiting", "prefill", "decode"]
    assert [name for index, name in named if index == 1][:2] == ["waiting", "fork"]
    assert all(each.parent == span.context for each in states)
    assert span.attributes["quire.state_changes"] == 9, "of which the last of each sequence begins no span"
    assert (span.attributes["quire.preemptions"], span.attributes["quire.requests_before"]) == (0, 0)
    assert span.attributes[LONGEST_WAIT] > 0
    told = {slot.traceparent for plan in stage.workers.plans for slot in plan.new_slots}
    assert told == {f"00-{TRACE}-{span.context.span_id:016x}-01"}


async def test_a_text_is_one_span_between_caller_and_worker(
    stage: Stage, spans: InMemorySpanExporter
) -> None:
    await stage.join()
    caller = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
    await stage.stub.Embed(
        EmbedTokensRequest(request_id="r", tokens=pack([1] * 9), pooling=MEAN), metadata=caller
    )
    *states, span = await spans_of(spans)
    assert (span.name, f"{span.context.trace_id:032x}") == ("scheduler.embed", TRACE)
    assert (span.attributes["quire.request_id"], span.attributes["quire.prompt_tokens"]) == ("r", 9)
    assert [each.name for each in states] == [
        f"scheduler.{name}" for name in ("waiting", "prefill", "decode")
    ]
    told = {slot.traceparent for plan in stage.workers.plans for slot in plan.new_slots}
    assert told == {f"00-{TRACE}-{span.context.span_id:016x}-01"}


@pytest.mark.parametrize(("message", "ours"), [(start([]), False), (start([1, 39, 1]), True)])
async def test_an_error_is_on_the_span(
    stage: Stage, spans: InMemorySpanExporter, message: GenerateRequest, ours: bool
) -> None:
    await stage.join()
    with pytest.raises(grpc.aio.AioRpcError):
        await collect(stage.stub.Generate(iter([message])))
    *_, span = await spans_of(spans)
    assert (span.status.status_code is StatusCode.ERROR) == ours
    assert [event.name for event in span.events][-1] == "exception"


async def test_untraced_requests_carry_no_trace(stage: Stage) -> None:
    await stage.join()
    await collect(stage.stub.Generate(iter([start([1])])))
    assert {slot.traceparent for plan in stage.workers.plans for slot in plan.new_slots} == {""}


BAD = {
    "prompt": [
        *(start([]), start(b"abc"), start([40]), start([-1])),
        *(start([1], predicted_tokens=each) for each in (b"abc", pack([40]), pack([-1]))),
    ],
    "images": [
        start([1] * 4, images=images)
        for images in (
            [seen(3, 2)],
            [seen(4, 1)],
            [seen(0, 0, rows=0)],
            [seen(0, 1, rows=0)],
            [seen(0, 1, columns=2)],
            [seen(0, 1, digest=bytes(31))],
            [seen(0, 2), seen(1, 2)],
            [seen(2, 1), seen(0, 1)],
            [seen(2**32 - 1, 2**32 - 1)],
            [seen(0, 1)] * 65,
        )
    ],
    "rolling_context": [start([1] * 4, images=[seen(0, 1)], rolling_context=True)],
    "n": [start([1], n=0), start([1], n=129)],
    "temperature": [start([1], temperature=value) for value in (-0.1, float("nan"), float("inf"))],
    "top_p": [start([1], top_p=value) for value in (0.0, 1.1, float("nan"))],
    "min_p": [start([1], min_p=value) for value in (-0.1, 1.1)],
    "presence_penalty": [start([1], presence_penalty=2.1)],
    "frequency_penalty": [start([1], frequency_penalty=float("nan"))],
    "repetition_penalty": [start([1], repetition_penalty=value) for value in (0.0, float("inf"))],
    "logprobs": [start([1], logprobs=2**31)],
    "start": [GenerateRequest(end_sequence=0), GenerateRequest()],
    "resumed": [
        start([1], resumed=[SequenceSoFar(index=1)]),
        start([1], resumed=[SequenceSoFar(index=0), SequenceSoFar(index=0)]),
        start([1], resumed=[SequenceSoFar(index=0, tokens=b"x")]),
    ],
}


@pytest.mark.parametrize(
    ("param", "message"), [(key, each) for key, values in BAD.items() for each in values]
)
async def test_bad_requests_name_the_field(stage: Stage, param: str, message: GenerateRequest) -> None:
    await stage.join()
    call = stage.stub.Generate(iter([message]))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(call)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert ("quire-param", param) in tuple(error.value.trailing_metadata())
    assert stage.all_free()


async def test_what_the_context_has_no_room_for(stage: Stage) -> None:
    await stage.join()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(stage.stub.Generate(iter([start([1] * 64)])))
    assert error.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert "maximum context length is 64 tokens" in error.value.details()
    assert ("quire-param", "prompt") in tuple(error.value.trailing_metadata())
    assert stage.all_free()


@pytest.mark.parametrize("max_tokens", [63, 64, 2**32 - 1])
async def test_an_answer_has_as_many_tokens_as_the_context_has_room_for(
    stage: Stage, max_tokens: int
) -> None:
    await stage.join()
    tokens = await collect(stage.stub.Generate(iter([start([1], max_tokens=max_tokens)])))
    assert [len(each) for each in tokens.values()] == [63]


async def test_ending_a_sequence_that_there_is_not_is_an_error(stage: Stage) -> None:
    await stage.join()
    stage.workers.going.clear()
    call = stage.stub.Generate()
    await call.write(start([1], max_tokens=0))
    await call.write(GenerateRequest(end_sequence=1))
    stage.workers.going.set()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(call)
    assert ("quire-param", "end_sequence") in tuple(error.value.trailing_metadata())
    await settled(stage)


async def test_a_message_that_cannot_be_read_ends_its_call(stage: Stage) -> None:
    async def messages() -> AsyncIterator[GenerateRequest]:
        yield start([1])
        raise DecodeError("Error parsing message")

    context = Context()
    with pytest.raises(DecodeError):
        await asyncio.wait_for(SchedulerService(stage.engine).Generate(messages(), context), 60)


class Context:
    """As much of a call's context as the servicer asks for before anything is answered."""

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def add_done_callback(self, callback: Any) -> None:
        pass

    async def write(self, message: Any) -> None:
        pass


async def test_an_answer_that_no_worker_here_goes_on_with_is_refused_after_a_while(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRANDED_SECONDS", 0.2)
    async with Stage(fake, fake.limits(fingerprint="new")) as stage:
        stage.workers.join()
        resumed = [SequenceSoFar(index=0, tokens=pack([5]))]

        def start(fingerprint: str) -> GenerateRequest:
            stop = StopConditions(max_tokens=8)
            fields = {"prompt_tokens": pack([1, 2]), "sampling": greedy(), "stop": stop, "n": 1}
            return GenerateRequest(start=Start(resumed=resumed, fingerprint=fingerprint, **fields))

        call = stage.stub.Generate(iter([start("old")]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "as it was begun" in (refused.value.details() or "")
        for fingerprint in ("new", ""):
            call = stage.stub.Generate(iter([start(fingerprint)]))
            assert (await call.read()).fingerprint == "new", "the caller is told who computes"


async def test_images_are_told_apart_and_go_to_workers_that_take_them(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRANDED_SECONDS", 0.2)
    prompt = [index % 9 for index in range(12)]
    async with Stage(fake, fake.limits(images=True)) as stage:
        stage.workers.join()
        answers, cached = [], []
        for digest in (b"a", b"b", b"a", b""):
            images = [seen(2, 4, rows=2, columns=2, digest=digest * 32)] if digest else []
            message = start(prompt, max_tokens=8, images=images)
            responses = [response async for response in stage.stub.Generate(iter([message]))]
            answers.append(b"".join(delta.tokens for each in responses for delta in each.deltas))
            cached.append(responses[0].cached_tokens)
        assert cached == [0, 0, 8, 0], "blocks of 4 tokens, of which the first two have some of the image"
        assert answers[2] == answers[0]
        assert len(set(answers)) == 3
    async with Stage(fake, fake.limits()) as stage:
        stage.workers.join()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await collect(stage.stub.Generate(iter([start(prompt, images=[seen(0, 1)])])))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert refused.value.details() == "no worker here takes these images"
    whole = {"images": True, "whole_images": True}
    async with Stage(fake, fake.limits(max_step_tokens=20, **whole)) as stage:
        await stage.join()
        stage.workers.going.clear()
        call = stage.stub.Generate(iter([start([1] * 20, images=[seen(2, 12)])]))
        await asyncio.wait_for(stage.workers.received.wait(), 60)
        stage.workers.kill()
        stage.workers.limits = fake.limits(max_step_tokens=10, **whole)
        stage.workers.going.set()
        stage.workers.join()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await collect(call)
        assert refused.value.details() == "no worker here takes these images"


async def test_adapters_are_told_apart_from_the_model_to_the_end(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRANDED_SECONDS", 0.2)
    limits = fake.limits(fingerprint="w", adapters={"sql": "w-sql"})
    async with Stage(fake, limits) as stage:
        stage.workers.join()
        found = {}
        for adapter, fingerprint in (("sql", "w-sql"), ("", "w")):
            prompt, stop = [index % 9 for index in range(12)], StopConditions(max_tokens=8)
            fields = {"prompt_tokens": pack(prompt), "sampling": greedy(), "stop": stop, "n": 1}
            call = stage.stub.Generate(iter([GenerateRequest(start=Start(adapter=adapter, **fields))]))
            responses = [response async for response in call]
            assert responses[0].fingerprint == fingerprint
            assert responses[0].cached_tokens == 0, "the other one's blocks are not those of this one"
            found[adapter] = b"".join(delta.tokens for each in responses for delta in each.deltas)
        assert found["sql"] != found[""]
        call = stage.stub.Generate(iter([GenerateRequest(start=Start(adapter="poet", **fields))]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert refused.value.details() == "no worker here has the adapter 'poet'"


async def test_what_only_a_larger_worker_holds_does_not_wait_for_ever(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STRANDED_SECONDS", 0.2)
    async with Stage(fake, fake.limits()) as stage:
        await stage.join()
        stage.workers.spoil = lambda result: stage.workers.going.clear()  # no plan after the first
        call = stage.stub.Generate()
        await call.write(start([1, 2, 3], max_tokens=59))
        await call.read()
        stage.workers.kill()
        stage.workers.spoil = lambda result: None
        stage.workers.limits = fake.limits(num_blocks=8)
        stage.workers.going.set()
        stage.workers.join()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await collect(call)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        wanted = "no worker here holds the 62 tokens that this answer may come to"
        assert refused.value.details() == wanted


async def test_log_probabilities_of_a_prompt_come_once_although_a_worker_dies(fake: SimpleNamespace) -> None:
    prompt = [index % 9 for index in range(40)]
    async with Stage(fake, fake.limits()) as stage:
        await stage.join()
        stage.workers.spoil = lambda result: stage.workers.going.clear()  # no plan after the first
        call = stage.stub.Generate()
        await call.write(start(prompt, prompt_logprobs=1, n=2, max_tokens=3))
        responses = [await call.read()]
        assert scored(responses) == prompt[1:17], "a chunk of the prompt"
        stage.workers.kill()
        stage.workers.spoil = lambda result: None
        stage.workers.going.set()
        await stage.join()
        while (response := await call.read()) is not grpc.aio.EOF:
            responses.append(response)
        assert scored(responses) == prompt[1:]
        answered = [bool(response.deltas) for response in responses]
        assert answered == sorted(answered), "the answer comes after its prompt"
        assert sum(len(delta.tokens) for response in responses for delta in response.deltas) == 4 * 2 * 3


async def test_another_scheduler_delivers_the_rest_of_a_prompt(fake: SimpleNamespace) -> None:
    prompt = [index % 9 for index in range(40)]
    async with Stage(fake, fake.limits()) as stage:
        await stage.join()
        call = stage.stub.Generate(iter([start(prompt, prompt_logprobs=1, scored_tokens=30, max_tokens=1)]))
        responses = [response async for response in call]
        assert scored(responses) == prompt[30:]


@pytest.mark.parametrize(
    "fields",
    [{"scored_tokens": 4}, {"scored_tokens": 2, "resumed": [SequenceSoFar(tokens=pack([1]))]}],
    ids=["more than there are", "fewer than an answer has seen"],
)
async def test_a_prompt_that_cannot_have_been_delivered(
    fake: SimpleNamespace, fields: dict[str, Any]
) -> None:
    async with Stage(fake, fake.limits()) as stage:
        await stage.join()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await collect(stage.stub.Generate(iter([start([1, 2, 3], prompt_logprobs=1, **fields)])))
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(refusal.value.trailing_metadata())["quire-param"] == "scored_tokens"
