"""The models on offer, as the leases of the running processes tell.

A model is on offer when it has a tokenizer process and a scheduler process with workers. One that
was seen is remembered: while its processes are being replaced, requests wait for it at its door.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.errors import GatewayError, NotFound, Unavailable
from gateway.upstream.backend import Backend
from proto.rpc import Lease

REFRESH_SECONDS = 1.0
PATIENCE_SECONDS = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """A model that some process has named."""

    name: str
    created: int
    """Unix time at which this gateway first saw it. Seconds."""
    max_model_len: int = 0
    """Tokens of prompt and output together; 0 while no worker has told."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """What counts instead of the API's defaults where a request leaves a parameter out."""
    missing: tuple[str, ...] = ()
    """Services it lacks to be on offer; empty if it is."""
    absent_since: float | None = field(default=None, compare=False)
    """Since when it has not been on offer, on the catalog's clock. Seconds."""


class Catalog:
    """Looks at the leases on demand, at most once in `REFRESH_SECONDS`."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._known: dict[str, Model] = {}
        self._looked_at = -float("inf")
        self._looking = asyncio.Lock()
        self._blind = False

    async def models(self) -> list[Model]:
        """Every model known, on offer or not. Raises `Unavailable` if the leases cannot be read."""
        await self._refresh()
        if self._blind:
            raise Unavailable("The message queue cannot be reached.")
        return list(self._known.values())

    async def find(self, name: str) -> Model:
        """The model `name`: on offer, or away for so short a time that waiting for it is worth it.

        Raises `NotFound` for a model never seen and `Unavailable` for one that is away for longer.
        """
        await self._refresh()
        model = self._known.get(name)
        if model is not None:
            if (error := self._given_up(model)) is not None:
                raise error
            return model
        if self._blind:
            raise Unavailable("The message queue cannot be reached.")
        raise NotFound(f"The model '{name[:200]}' does not exist.", param="model", code="model_not_found")

    async def lost(self) -> dict[str, GatewayError]:
        """By name, the models that nobody should wait for any longer, and why."""
        await self._refresh()
        errors = {name: self._given_up(model) for name, model in self._known.items()}
        return {name: error for name, error in errors.items() if error is not None}

    def _given_up(self, model: Model) -> GatewayError | None:
        if model.absent_since is None or self._clock() - model.absent_since < PATIENCE_SECONDS:
            return None
        missing = " and no ".join(model.missing) or "message queue"
        return Unavailable(f"The model '{model.name}' is not available: no {missing} is running.")

    async def _refresh(self) -> None:
        async with self._looking:
            if self._clock() - self._looked_at < REFRESH_SECONDS:
                return
            try:
                leases = await self._backend.leases()
            except (ConnectionError, TimeoutError) as error:
                if not self._blind:
                    logger.warning("cannot read the leases: %s", error or type(error).__name__)
                self._blind = True
                leases = []
            else:
                self._blind = False
            self._looked_at = self._clock()
            self._note(leases)

    def _note(self, leases: list[Lease]) -> None:
        by_model: dict[str, list[Lease]] = {name: [] for name in self._known}
        for lease in leases:
            if isinstance(name := lease.info.get("model"), str):
                by_model.setdefault(name, []).append(lease)
        for name, of_model in by_model.items():
            self._known[name] = self._seen(name, of_model)

    def _seen(self, name: str, leases: list[Lease]) -> Model:
        before = self._known.get(name) or Model(name, created=int(time.time()))
        missing = () if self._blind else _missing(leases)
        absent = self._blind or bool(missing)
        since = before.absent_since if before.absent_since is not None else self._clock()
        longest = max((_count(lease, "max_model_len") for lease in leases), default=0)
        told = [said for lease in leases if isinstance(said := lease.info.get("defaults"), dict)]
        return Model(
            name,
            before.created,
            longest or before.max_model_len,
            told[0] if told else before.defaults,
            missing,
            since if absent else None,
        )


def _missing(leases: list[Lease]) -> tuple[str, ...]:
    services = {lease.service for lease in leases}
    served = any(_count(lease, "workers") > 0 for lease in leases if lease.service == "scheduler")
    there = {"tokenizer": "tokenizer" in services, "scheduler": "scheduler" in services, "worker": served}
    return tuple(service for service, present in there.items() if not present)


def _count(lease: Lease, key: str) -> int:
    value = lease.info.get(key)
    return value if isinstance(value, int) else 0
