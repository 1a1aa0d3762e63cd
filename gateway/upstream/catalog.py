"""The models that are available, according to the leases of the running processes.

A model is available if it has a tokenizer process, a scheduler process and a worker. A model that was seen
once is remembered: while its processes are being replaced, requests for it wait in its queue.

Each model has processes of its own, which find each other by its name. Aliases are names that the gateway
alone knows; a model that has the name of an alias goes before it.

LoRA adapters of a model are asked for by names of their own, too, which its schedulers tell. A model or an
alias goes before an adapter of the same name.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType

from gateway.errors import BadRequest, GatewayError, Unavailable, UnknownModel
from gateway.upstream.backend import Backend
from proto.rpc import Lease

REFRESH_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
"""Time that requests wait for a model that is not available; then they fail."""
NAMED = 20
"""Models that a refusal names at most."""
CAPACITY = 256
"""Calls that a process holds at once if its lease does not say it."""

SERVICES = ("tokenizer", "scheduler", "worker")
"""What must run of a model."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """A model that a process names in its lease."""

    name: str
    created: int
    """Unix time when this gateway first saw it. Seconds."""
    max_model_len: int = 0
    """Tokens of prompt and output together; 0 until a worker has announced it."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """The model's own defaults, by parameter. They replace the API's."""
    capacity: int = CAPACITY
    """Calls that this gateway may have under way for it at once."""
    missing: tuple[str, ...] = ()
    """Services that do not run for it; empty if the model is available."""
    stalled: bool = False
    """All of its workers hang in a step."""
    num_labels: int = 0
    """Labels of a classifier, which does nothing but classify; see `purpose.py`. 0: the model is none."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters that all of its schedulers with workers have, sorted."""
    bidirectional: bool = False
    """It is an encoder, which embeds or classifies texts and generates none."""
    images: bool = False
    """It sees images."""
    calls: bool = False
    """Calls of functions are told from its text."""
    thoughts: bool = False
    """Thoughts are told from its text."""
    headless: bool = False
    """It has no head: it embeds texts and generates none."""
    absent_since: float | None = field(default=None, compare=False)
    """When it ceased to be available, on the catalog's clock; None if it is available. Seconds."""

    @property
    def generates(self) -> bool:
        """Whether it generates text."""
        return not (self.num_labels or self.bidirectional or self.headless)


class Catalog:
    """Reads the leases on demand, at most once in `REFRESH_SECONDS`."""

    def __init__(
        self,
        backend: Backend,
        clock: Callable[[], float] = time.monotonic,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`aliases`: names of models by other names for them."""
        self._backend = backend
        self._clock = clock
        self._aliases = aliases
        self._known: dict[str, Model] = {}
        self._bases: dict[str, str] = {}
        """Names of models by those of all adapters that were ever seen. They come back with their workers."""
        self._read_at = -float("inf")
        self._reading = asyncio.Lock()
        self._unreadable = False

    async def models(self) -> list[Model]:
        """All known models by name, available or not. Raises `Unavailable` if the leases cannot be read."""
        await self._refresh()
        if self._unreadable:
            raise Unavailable("The message queue cannot be reached.")
        return sorted(self._known.values(), key=attrgetter("name"))

    def aliases_of(self, name: str) -> list[str]:
        """Other names of the model `name`, and of its adapters."""
        return [alias for alias in self._aliases if self.name_of(alias) == name and alias != name]

    def name_of(self, name: str) -> str:
        """The name of the model that a request means by `name`, whether there is one or not.

        `name` may be an alias, or an adapter of that model.
        """
        meant = self._meant(name)
        return meant if meant in self._known else self._bases.get(meant, meant)

    def adapter_of(self, name: str) -> str:
        """The adapter that a request means by `name`; empty if it means a model."""
        meant = self._meant(name)
        return meant if meant in self._bases and meant not in self._known else ""

    def adapters_of(self, model: Model) -> list[str]:
        """Adapters that a model has now and that are asked for by names that no model or alias has."""
        return [
            name
            for name in model.adapters
            if self.adapter_of(name) == name and self.name_of(name) == model.name
        ]

    def _meant(self, name: str) -> str:
        """What an alias stands for; any other name itself."""
        return name if name in self._known else self._aliases.get(name, name)

    async def find(self, name: str) -> Model:
        """The model `name`, if it is available or has been absent for less than `PATIENCE_SECONDS`.

        `name`: see `name_of`. Raises `UnknownModel` for a model that was never seen, or of which nothing has
        run for longer while another model is available, and `Unavailable` for any other that is absent for
        longer.
        """
        await self._refresh()
        model = self._known.get(self.name_of(name))
        error = self._lost(model) if model is not None else None
        if model is not None and error is None:
            return model
        there = [
            name for one in self._known.values() if not one.missing for name in (one.name, *one.adapters)
        ]
        if not self._unreadable and (model is None or (there and model.missing == SERVICES)):
            raise _not_found(name, there)
        raise error or Unavailable("The message queue cannot be reached.")

    async def only(self) -> str:
        """Name of the only model, for requests that name none. Raises `BadRequest` if there are others."""
        names = [model.name for model in await self.models()]
        if len(names) != 1:
            message = "Missing required parameter: 'model'."
            raise BadRequest(message, param="model", code="missing_required_parameter")
        return names[0]

    async def lost(self) -> dict[str, GatewayError]:
        """The models that have been absent for longer than `PATIENCE_SECONDS`: an error for each, by name."""
        await self._refresh()
        errors = {name: self._lost(model) for name, model in self._known.items()}
        return {name: error for name, error in errors.items() if error is not None}

    def _lost(self, model: Model) -> GatewayError | None:
        if model.absent_since is None or self._clock() - model.absent_since < PATIENCE_SECONDS:
            return None
        missing = " and no ".join(model.missing) or "message queue"
        return Unavailable(f"The model '{model.name}' is not available: no {missing} is running.")

    @property
    def _fresh(self) -> bool:
        return self._clock() - self._read_at < REFRESH_SECONDS

    async def _refresh(self) -> None:
        if self._fresh:
            return
        async with self._reading:
            if self._fresh:  # another request has read them meanwhile
                return
            try:
                leases = await self._backend.leases()
            except (ConnectionError, TimeoutError) as error:
                if not self._unreadable:
                    logger.warning("cannot read the leases: %s", error or type(error).__name__)
                self._unreadable = True
                leases = []
            else:
                self._unreadable = False
            self._read_at = self._clock()
            self._note(leases)

    def _note(self, leases: list[Lease]) -> None:
        by_model: dict[str, list[Lease]] = {name: [] for name in self._known}
        for lease in leases:
            if (name := _name(lease)) is not None:
                by_model.setdefault(name, []).append(lease)
        gateways = sum(one.service == "gateway" and not one.info.get("stopping") for one in leases)
        for name, of_model in by_model.items():
            self._known[name] = model = self._seen(name, of_model, gateways)
            for adapter in model.adapters:
                other = self._known.get(self._bases.get(adapter, ""))
                if other is None or adapter not in other.adapters:
                    self._bases[adapter] = name

    def _seen(self, name: str, leases: list[Lease], gateways: int) -> Model:
        before = self._known.get(name) or Model(name, created=int(time.time()))
        missing = () if self._unreadable else _missing(leases)
        absent = self._unreadable or bool(missing)
        since = before.absent_since if before.absent_since is not None else self._clock()
        longest = max((_count(lease, "max_model_len") for lease in leases), default=0)
        defaults = [found for lease in leases if (found := _defaults(lease)) is not None]
        labels = [_count(lease, "num_labels") for lease in leases if lease.service == "tokenizer"]
        encoders, seeing = _told(leases, "bidirectional"), _told(leases, "images")
        calling, thinking = _told(leases, "calls"), _told(leases, "thoughts")
        headless = [each.info.get("headless") is True for each in _serving(leases)]
        return Model(
            name,
            before.created,
            longest or before.max_model_len,
            defaults[0] if defaults else before.defaults,
            _capacity(leases) // max(1, gateways) or before.capacity,
            missing,
            _stalled(leases),
            labels[0] if labels else before.num_labels,
            _adapters(leases),
            encoders[0] if encoders else before.bidirectional,
            seeing[0] if seeing else before.images,
            calling[0] if calling else before.calls,
            thinking[0] if thinking else before.thoughts,
            any(headless) if headless else before.headless,
            since if absent else None,
        )


def _not_found(name: str, there: Sequence[str]) -> UnknownModel:
    """`there`: names of the models that are available."""
    listed = ", ".join(f"'{each}'" for each in there[:NAMED]) + (", …" if len(there) > NAMED else "")
    offer = f" Available: {listed}." if there else ""
    message = f"The model '{name[:200]}' does not exist.{offer}"
    return UnknownModel(message, others=bool(there))


def _missing(leases: list[Lease]) -> tuple[str, ...]:
    services = {lease.service for lease in leases}
    served = any(_count(lease, "workers") > 0 for lease in leases if lease.service == "scheduler")
    there = ("tokenizer" in services, "scheduler" in services, served)
    return tuple(service for service, present in zip(SERVICES, there, strict=True) if not present)


def _serving(leases: list[Lease]) -> list[Lease]:
    """Those of schedulers with workers."""
    return [lease for lease in leases if lease.service == "scheduler" and _count(lease, "workers")]


def _stalled(leases: list[Lease]) -> bool:
    """Whether no worker gets on with its step, as the schedulers say."""
    serving = _serving(leases)
    return bool(serving) and all(_count(each, "stalled") >= _count(each, "workers") for each in serving)


def _capacity(leases: list[Lease]) -> int:
    """Calls that a model's tokenizers and schedulers hold at once. Each call holds a place in both."""
    held = {"tokenizer": 0, "scheduler": 0}
    for lease in leases:
        if lease.service in held and lease.info.get("workers") != 0:
            held[lease.service] += _count(lease, "capacity") or CAPACITY
    return min(held.values())


def _adapters(leases: list[Lease]) -> tuple[str, ...]:
    """Adapters that each scheduler with workers has: any of them may take a request."""
    every = [lease.info.get("adapters") for lease in _serving(leases)]
    names = [
        {one for one in each if isinstance(one, str) and _is_text(one)} if isinstance(each, list) else set()
        for each in every
    ]
    return tuple(sorted(set.intersection(*names))) if names else ()


def _told(leases: list[Lease], key: str) -> list[bool]:
    """What each of the tokenizers tells of its model."""
    return [lease.info.get(key) is True for lease in leases if lease.service == "tokenizer"]


def _count(lease: Lease, key: str) -> int:
    value = lease.info.get(key)
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _name(lease: Lease) -> str | None:
    """The model that the process serves. None for a name that could not be written into an answer."""
    name = lease.info.get("model")
    return name if isinstance(name, str) and _is_text(name) else None


def _defaults(lease: Lease) -> dict[str, float] | None:
    """The model's own defaults, as far as they can be written into an answer; None if there are none."""
    defaults = lease.info.get("defaults")
    if not isinstance(defaults, dict):
        return None
    return {
        name: value
        for name, value in defaults.items()
        if isinstance(name, str) and _is_text(name) and type(value) in (int, float) and abs(value) < 2**53
    }


def _is_text(name: str) -> bool:
    """Whether it is UTF-8: JSON can spell halves of characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
