"""The servicer of `quire.Worker`: connects a gRPC call with the engine thread."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from gpu_worker.engine import Engine, Session, Sighted
from gpu_worker.errors import PlanError, StepError
from gpu_worker.plan_images import bring
from ops.runtime.image_store import ImageStore
from proto.rpc.resume import RAISED
from proto.worker_pb2 import Adapter, StepPlan, WorkerEvent, WorkerReady
from proto.worker_pb2_grpc import WorkerServicer


class WorkerService(WorkerServicer):
    """See worker.proto."""

    def __init__(self, engine: Engine, model: str, images: ImageStore | None = None) -> None:
        """`model`: name under which the model is served. `images`: where files of images are; None: plans
        bring them."""
        self._engine, self._images = engine, images
        self._in_session = asyncio.Lock()
        limits = engine.limits
        self._ready = WorkerReady(
            model=model,
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_slots=limits.max_slots,
            max_model_len=limits.max_model_len,
            vocab_size=limits.vocab_size,
            max_step_tokens=limits.max_step_tokens,
            host_blocks=engine.runner.host_offer.host_blocks,
            swap_block_us=engine.runner.host_offer.swap_block_us,
            token_us=engine.runner.host_offer.token_us,
            window=limits.window,
            embedding_size=limits.embedding_size,
            can_draft=engine.runner.drafter is not None,
            fingerprint=engine.runner.fingerprint,
            num_labels=limits.num_labels,
            bidirectional=limits.bidirectional,
            recurrent=limits.recurrent,
            images=limits.images,
            whole_images=limits.whole_images,
            headless=limits.headless,
            adapters=[
                Adapter(name=name, fingerprint=fingerprint)
                for name, fingerprint in engine.runner.adapters.items()
            ],
        )

    async def Execute(self, requests: AsyncIterator[StepPlan], context: Any) -> AsyncIterator[WorkerEvent]:
        await self._in_session.acquire()  # one session at a time
        session = Session(self._engine)
        reader = asyncio.ensure_future(_read(requests, session, self._images))

        def end(*_: object) -> None:
            reader.cancel()
            session.end()
            self._in_session.release()

        # A `finally` would not do: a call may end while it sends, and then this generator is not run again.
        context.add_done_callback(end)
        yield WorkerEvent(ready=self._ready)
        while (event := await session.events.get()) is not None:
            if isinstance(event, Exception):
                if isinstance(event, StepError):
                    raised = ((RAISED, str(event.step)),)
                    await context.abort(grpc.StatusCode.INTERNAL, str(event), raised)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(event))
            elif isinstance(event, int):
                yield WorkerEvent(compiled=event)
            elif isinstance(event, Sighted):
                yield WorkerEvent(seen=event.number)
            else:
                yield WorkerEvent(result=event)


async def _read(requests: AsyncIterator[StepPlan], session: Session, images: ImageStore | None) -> None:
    """Submit all plans of the scheduler, then finish the session."""
    try:
        async for plan in requests:
            if images is not None:
                await bring(plan, images)
            session.submit(plan)
    except PlanError as error:
        session.refuse(error)
    except Exception as error:  # otherwise the worker would be lent for ever
        session.refuse(PlanError(f"a plan that cannot be read: {error}"))
    else:
        session.finish()
