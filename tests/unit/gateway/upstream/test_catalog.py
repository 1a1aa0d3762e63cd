"""Which models are on offer, and how long one waits for a model that is away."""

import asyncio
from dataclasses import replace

import pytest

from gateway.errors import NotFound, Unavailable
from gateway.upstream import generator as module
from gateway.upstream.catalog import PATIENCE_SECONDS, REFRESH_SECONDS, Catalog
from proto.rpc import Lease

TOKENIZER = Lease("t-1", "tokenizer", 1, {"model": "m"})
SCHEDULER = Lease("s-1", "scheduler", 1, {"model": "m", "workers": 1, "max_model_len": 512})


class Leases:
    """A backend and its clock."""

    def __init__(self, *leases: Lease) -> None:
        self.now = 1000.0
        self.list = list(leases)
        self.failure: Exception | None = None
        self.looks = 0

    def clock(self) -> float:
        return self.now

    async def leases(self) -> list[Lease]:
        self.looks += 1
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure
        return self.list

    def tokenizer(self, model):
        raise NotImplementedError


def catalog_of(*leases: Lease) -> tuple[Catalog, Leases]:
    backend = Leases(*leases)
    return Catalog(backend, backend.clock), backend


async def test_a_model_stalls_if_all_of_its_workers_do():
    def scheduler(workers: object, stalled: object) -> Lease:
        return replace(SCHEDULER, info={"model": "m", "workers": workers, "stalled": stalled})

    for leases, stalled in (
        ([SCHEDULER], False),
        ([scheduler(1, 0)], False),
        ([scheduler(1, 1)], True),
        ([scheduler(2, 1)], False),
        ([scheduler(1, 1), scheduler(1, 0)], False),
        ([scheduler(1, 1), scheduler(0, 0)], True),
        ([scheduler(0, 0)], False),
        ([scheduler(1, "1")], False),
    ):
        catalog, _ = catalog_of(TOKENIZER, *leases)
        (model,) = await catalog.models()
        assert model.stalled is stalled
        if not model.missing:
            assert await catalog.find("m") == model, "requests wait: its worker is ended soon"


async def test_a_model_needs_a_tokenizer_and_a_scheduler_with_workers():
    idle = replace(SCHEDULER, info={"model": "m", "workers": 0, "max_model_len": 0})
    other = replace(SCHEDULER, info={"model": "other", "workers": 1})
    for leases, missing in (
        ([TOKENIZER, SCHEDULER], ()),
        ([TOKENIZER, SCHEDULER, idle], ()),
        ([TOKENIZER, idle], ("worker",)),
        ([TOKENIZER], ("scheduler", "worker")),
        ([SCHEDULER], ("tokenizer",)),
        ([TOKENIZER, other], ("scheduler", "worker")),
        ([Lease("w", "worker", 1, {"model": "m"})], ("tokenizer", "scheduler", "worker")),
    ):
        catalog, _ = catalog_of(*leases)
        assert {model.name: model.missing for model in await catalog.models()}["m"] == missing
        assert (await catalog.find("m")).max_model_len == (512 if SCHEDULER in leases else 0)


async def test_leases_without_a_model_are_no_models():
    odd = [Lease("g", "gateway", 1, {"url": "u"}), Lease("x", "tokenizer", 1, {"model": 5})]
    catalog, _ = catalog_of(*odd)
    assert await catalog.models() == []
    with pytest.raises(NotFound):
        await catalog.find("m")


async def test_it_looks_at_most_once_a_second_and_only_when_asked():
    catalog, backend = catalog_of(TOKENIZER, SCHEDULER)
    await asyncio.gather(*(catalog.find("m") for _ in range(20)))
    assert backend.looks == 1
    backend.now += REFRESH_SECONDS
    await catalog.models()
    assert backend.looks == 2


async def test_a_model_that_is_briefly_away_is_waited_for():
    catalog, backend = catalog_of(TOKENIZER, SCHEDULER)
    await catalog.find("m")
    backend.now += 3600
    backend.list = [SCHEDULER]
    assert (await catalog.find("m")).missing == ("tokenizer",)
    backend.now += PATIENCE_SECONDS - 1
    assert await catalog.lost() == {}
    backend.now += 2
    assert (await catalog.lost()).keys() == {"m"}
    with pytest.raises(Unavailable, match="no tokenizer"):
        await catalog.find("m")
    backend.list = [TOKENIZER, SCHEDULER]
    backend.now += 2
    assert (await catalog.find("m")).absent_since is None
    assert await catalog.lost() == {}


async def test_a_message_queue_that_is_away():
    catalog, backend = catalog_of(TOKENIZER, SCHEDULER)
    backend.failure = ConnectionError("refused")
    with pytest.raises(Unavailable, match="message queue"):
        await catalog.find("m")
    backend.failure = None
    backend.now += 2
    await catalog.find("m")
    backend.failure = TimeoutError()
    backend.now += 2
    assert (await catalog.find("m")).max_model_len == 512
    with pytest.raises(Unavailable):
        await catalog.models()
    backend.now += PATIENCE_SECONDS
    with pytest.raises(Unavailable, match="message queue"):
        await catalog.find("m")


def leases_of(name: str) -> list[Lease]:
    return [
        replace(lease, process_id=f"{lease.process_id}-{name}", info=lease.info | {"model": name})
        for lease in (TOKENIZER, SCHEDULER)
    ]


async def test_of_two_models_the_one_that_is_gone_is_unknown_and_the_others_are_named():
    catalog, backend = catalog_of(*leases_of("a"), *leases_of("b"))
    assert ((await catalog.find("a")).name, (await catalog.find("b")).name) == ("a", "b")
    with pytest.raises(NotFound, match=r"The model 'c' does not exist\. Available: 'a', 'b'\."):
        await catalog.find("c")
    backend.now += 2
    backend.list = leases_of("b")
    assert (await catalog.find("a")).missing == ("tokenizer", "scheduler", "worker")
    backend.now += PATIENCE_SECONDS
    with pytest.raises(NotFound, match=r"Available: 'b'\."):
        await catalog.find("a")
    assert isinstance((await catalog.lost())["a"], Unavailable), "what was asked before may come back"
    backend.list = [*leases_of("a")[:1], *leases_of("b")]
    backend.now += 2
    with pytest.raises(Unavailable, match="no scheduler and no worker"):
        await catalog.find("a")
    backend.list = []
    backend.now += 2
    with pytest.raises(Unavailable):
        await catalog.find("a")


async def test_an_alias_is_the_model_that_it_names_unless_a_model_has_that_name():
    backend = Leases(*leases_of("a"))
    catalog = Catalog(backend, backend.clock, {"gpt": "a", "b": "a", "none": "c"})
    for name in ("a", "gpt", "b"):
        assert (await catalog.find(name)).name == "a"
    assert catalog.aliases_of("a") == ["gpt", "b"]
    with pytest.raises(NotFound, match="'none'"):
        await catalog.find("none")
    backend.list += leases_of("b")
    backend.now += 2
    assert (await catalog.find("b")).name == "b"
    assert (catalog.aliases_of("a"), catalog.aliases_of("b")) == (["gpt"], [])


def with_adapters(name: str, *every: object) -> list[Lease]:
    """A tokenizer, and a scheduler with each of these lists of adapters."""
    tokenizer, scheduler = leases_of(name)
    schedulers = [
        replace(scheduler, process_id=f"{number}-{name}", info=scheduler.info | {"adapters": adapters})
        for number, adapters in enumerate(every)
    ]
    return [tokenizer, *schedulers]


async def test_an_adapter_is_a_name_for_its_model():
    backend = Leases(*with_adapters("a", ["sql", "poet"]), *leases_of("b"))
    catalog = Catalog(backend, backend.clock, {"gpt": "sql", "poet": "b"})
    assert (await catalog.find("a")).adapters == ("poet", "sql")
    for name, model, adapter in (("sql", "a", "sql"), ("gpt", "a", "sql"), ("poet", "b", ""), ("a", "a", "")):
        assert (await catalog.find(name)).name == catalog.name_of(name) == model
        assert catalog.adapter_of(name) == adapter, "an alias goes before an adapter"
    assert catalog.adapters_of(await catalog.find("a")) == ["sql"]
    with pytest.raises(NotFound, match=r"Available: 'a', 'poet', 'sql', 'b'\."):
        await catalog.find("none")
    backend.list += leases_of("sql")
    backend.now += 2
    assert (await catalog.find("sql")).name == "sql", "and so does a model"
    assert catalog.adapter_of("sql") == catalog.adapter_of("gpt") == ""


async def test_an_adapter_is_on_offer_while_all_schedulers_with_workers_have_it():
    catalog, backend = catalog_of(*with_adapters("a", ["x", "y"], ["y", "z"]))
    (model,) = await catalog.models()
    assert model.adapters == ("y",), "any of the schedulers may take a request"
    idle = replace(backend.list[2], info=backend.list[2].info | {"workers": 0})
    for rest, adapters in (
        ([idle], ("x", "y")),
        (with_adapters("a", None), ()),
        (with_adapters("a", [1, "\ud800", "x"]), ("x",)),
        ([], ()),
    ):
        backend.list = [*backend.list[:2], *rest] if rest == [idle] else rest
        backend.now += 2
        (model,) = await catalog.models()
        assert model.adapters == adapters
    assert (catalog.name_of("y"), catalog.adapter_of("y")) == ("a", "y"), "it comes back with its workers"
    backend.list = [*leases_of("a"), *with_adapters("b", ["y"]), *with_adapters("c", ["y"])]
    backend.now += 2
    await catalog.models()
    assert catalog.name_of("y") == "b", "unless another model has it now"
    backend.list = [*with_adapters("a", ["y"]), *with_adapters("b", ["y"])]
    backend.now += 2
    await catalog.models()
    assert catalog.name_of("y") == "b", "it stays where it is on offer"


async def test_readiness(gateway):
    assert (await gateway.http.get("/health/live")).json() == {"status": "live"}
    ready = await gateway.http.get("/health/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "models": ["m"]})


async def test_what_is_missing_is_told(gateway):
    gateway.backend.lease_list = []
    ready = await gateway.http.get("/health/ready")
    assert (ready.status_code, ready.json()["missing"]) == (503, ["tokenizer", "scheduler", "worker"])


async def test_a_queue_that_is_away_is_told(gateway):
    gateway.backend.reachable = False
    ready = await gateway.http.get("/health/ready")
    assert (ready.status_code, ready.json()["missing"]) == (503, ["message queue"])
    response = await gateway.http.post("/v1/completions", json={"model": "m", "prompt": "A"})
    assert response.status_code == 503


async def test_an_answer_whose_model_does_not_come_back_is_ended(gateway, monkeypatch):
    asked = asyncio.Event()

    async def generate(request, context):
        asked.set()
        await asyncio.Event().wait()
        yield

    gateway.tokenizer.generate = generate
    generator = gateway.app.state.generator
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.01)
    ask = {"model": "m", "prompt": "A"}
    answer = asyncio.ensure_future(gateway.http.post("/v1/completions", json=ask))
    await asyncio.wait_for(asked.wait(), 60)
    lost = {"m": Unavailable("The model 'm' is not available.")}

    async def all_lost():
        return lost

    monkeypatch.setattr(generator._catalog, "lost", all_lost)
    watch = asyncio.ensure_future(generator.watch())
    response = await asyncio.wait_for(answer, 60)
    watch.cancel()
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.json()["error"]["message"] == "The model 'm' is not available."


async def test_a_gateway_that_stops_says_so(gateway):
    asked = asyncio.Event()

    async def generate(request, context):
        asked.set()
        await asyncio.Event().wait()
        yield

    gateway.tokenizer.generate = generate
    ask = {"model": "m", "prompt": "A"}
    answer = asyncio.ensure_future(gateway.http.post("/v1/completions", json=ask))
    await asyncio.wait_for(asked.wait(), 60)
    gateway.app.state.generator.stop()
    for response in (await answer, await gateway.http.post("/v1/completions", json=ask)):
        assert response.status_code == 503
        assert "stopping" in response.json()["error"]["message"]


async def test_a_lease_says_nothing_that_an_answer_could_not(gateway, backend):
    """JSON can spell what HTTP's JSON cannot: NaN, halves of characters, trees without end."""
    deep = [[]]
    for _ in range(900):
        deep = [deep]
    defaults = {"temperature": float("nan"), "top_p": 0.5, "top_k": 10**400, "\ud800": 1, "deep": deep}
    info = {"model": "m", "workers": 10**400, "max_model_len": 10**400, "defaults": defaults}
    backend.lease_list = [
        *backend.lease_list,
        Lease("x-1", "tokenizer", 1, info),
        Lease("x-2", "scheduler", 1, {**info, "model": "\ud800"}),
        Lease("x-3", "scheduler", 1, {**info, "model": {"a": 1}}),
    ]
    models = (await gateway.http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["m"]
    assert (await gateway.http.get("/health/ready")).status_code == 200


@pytest.mark.parametrize(
    ("tokenizers", "schedulers", "gateways", "capacity"),
    [
        ([100], [60], 0, 60),
        ([100], [60], 1, 60),
        ([100], [60, 60], 1, 100),
        ([100, 100], [60, 60], 3, 40),
        ([None], [None], 1, 256),
        ([100], [0], 1, 256),
    ],
)
async def test_gateways_share_what_the_services_hold(tokenizers, schedulers, gateways, capacity):
    """A scheduler without workers (0) holds nothing."""

    def of(kind, lease, capacities):
        for number, held in enumerate(capacities):
            info = lease.info if held is None else lease.info | {"capacity": held or 60}
            info = info | {"workers": 0} if held == 0 else info
            yield replace(lease, process_id=f"{kind}-{number}", info=info)

    leases = [*of("t", TOKENIZER, tokenizers), *of("s", SCHEDULER, schedulers)]
    leases += [Lease(f"g-{number}", "gateway", 1) for number in range(gateways)]
    catalog, _ = catalog_of(*leases)
    assert (await catalog.find("m")).capacity == capacity


async def test_models_are_listed_by_name_whoever_was_seen_first():
    catalog, backend = catalog_of(*(replace(TOKENIZER, info={"model": name}) for name in ("owl", "fox")))
    assert [model.name for model in await catalog.models()] == ["fox", "owl"]
    backend.list.append(replace(TOKENIZER, info={"model": "ant"}))
    backend.now += REFRESH_SECONDS
    assert [model.name for model in await catalog.models()] == ["ant", "fox", "owl"]
