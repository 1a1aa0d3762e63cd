"""Each mechanism on and off: the same work with it and without it, in turns.

A mechanism is an entry of `MECHANISMS`, which run in this process (`ops/bench/rig/in_process.py`), so that
nothing but the mechanism differs between the two; or of `DEPLOYED`, if only whole deployments show it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.memory.cache import make_caches
from gpu_worker.memory.host import HostPages
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.warmup import host_offer
from gpu_worker.step.runner import Runner
from ops.bench.load.load import summarize
from ops.bench.load.workload import Workload
from ops.bench.mechanisms.deployed import DEPLOYED
from ops.bench.mechanisms.drafts import drafts, predicted
from ops.bench.mechanisms.forced import forced
from ops.bench.perplexity import perplexity, runner_of
from ops.bench.record import percentile
from ops.bench.rig.accounting import needed, tokens
from ops.bench.rig.in_process import InProcess, gaps
from scheduler_svc.core.beam_search import BeamSearch

Figures = Mapping[str, float]
Run = Callable[[Runner, int], Figures]
"""One measurement, from a runner and a seed."""

USERS = 8


@dataclass(frozen=True)
class Mechanism:
    """Something that can be had or not."""

    name: str
    work: str
    """What was done, in a line."""
    present: Run
    absent: Run


def _loop(engine: InProcess, workload: Workload, requests: int, users: int, seed: int) -> dict[str, float]:
    """A closed loop: what it took."""
    conversations = workload.conversations(requests, seed)
    answers, seconds = engine.closed_loop(conversations, users)
    summary = summarize(answers, seconds)
    return {
        "output tokens/s": summary.output_rate,
        "TTFT p50 ms": summary.first_token["p50"],
        "tokens computed": engine.tally.computed,
        "scheduler share": round(engine.times.planning / seconds, 4),
    }


def _shared_prefix(shares: bool) -> Run:
    def run(runner: Runner, seed: int) -> Figures:
        workload = Workload(prompt_lengths=(48,), output_lengths=(32, 32), shared_prefix=432)
        return _loop(InProcess(runner, shares=shares), workload, 3 * USERS, USERS, seed)

    return run


def _nothing_shared(shares: bool) -> Run:
    def run(runner: Runner, seed: int) -> Figures:
        workload = Workload(output_lengths=(32, 32))
        return _loop(InProcess(runner, shares=shares), workload, 3 * USERS, USERS, seed)

    return run


def _long_prompt(step_tokens: int) -> Run:
    """Users are being answered when somebody comes with a long prompt."""

    def run(runner: Runner, seed: int) -> Figures:
        limits = runner.limits
        long = min(2048, limits.max_model_len - 32, limits.max_step_tokens - USERS)
        budget = step_tokens or limits.max_step_tokens
        engine = InProcess(runner, step_tokens=budget, shares=False)
        short = Workload(prompt_lengths=(16,), output_lengths=(160, 160))
        asked = [engine.ask(questions[0]) for questions in short.conversations(USERS, seed)]
        late = Workload(prompt_lengths=(long,), output_lengths=(8, 8)).conversations(1, seed + 1)[0][0]
        came = []
        engine.run(lambda step: came.append(engine.ask(late)) if step == 40 else None)
        waits = gaps([each.answer for each in asked])
        return {
            "ITL p50 ms": round(percentile(waits, 0.5), 3),
            "ITL p99 ms": round(percentile(waits, 0.99), 3),
            "longest ITL ms": round(max(waits), 3),
            "TTFT of the long prompt ms": round(1000 * came[0].answer.time_to_first_token, 3),
        }

    return run


def _samples(together: bool, beams: int = 0) -> Run:
    """Four answers to one prompt, as one request or as four that know nothing of each other.

    `beams`: the one request is a search of that width.
    """

    def run(runner: Runner, seed: int) -> Figures:
        engine = InProcess(runner, shares=together)
        question = Workload(prompt_lengths=(505,), output_lengths=(32, 32)).conversations(1, seed)[0][0]
        one = [engine.ask(question, n=4, beams=BeamSearch(beams) if beams else None)] if together else []
        asked = one or [engine.ask(question) for _ in range(4)]
        engine.run()
        begun = min(each.answer.sent for each in asked)
        return {
            "milliseconds": round(1000 * (max(each.answer.ended for each in asked) - begun), 1),
            "tokens computed": engine.tally.computed,
            "KV tokens held, peak": max(engine.tally.held),
        }

    return run


def _pool(scarce: bool) -> Run:
    """All users' sequences fit into the pool, or half of them do, and the others are preempted by turns."""

    def run(runner: Runner, seed: int) -> Figures:
        blocks = USERS * 256 // runner.limits.block_size
        engine = InProcess(runner, num_blocks=blocks // 2 if scarce else 2 * blocks)
        figures = _loop(engine, GROWING, 2 * USERS, USERS, seed)
        wanted = needed(question for each in GROWING.conversations(2 * USERS, seed) for question in each)
        return {
            "output tokens/s": figures["output tokens/s"],
            "computed again, share": round(engine.tally.computed / wanted - 1, 4),
            "preemptions": engine.admissions - 2 * USERS,
        }

    return run


def _host_memory(on: bool, workload: Workload) -> Run:
    """The pool has room for half of what users have in hand at most; the host for twice all of it or none."""

    def run(runner: Runner, seed: int) -> Figures:
        conversations = workload.conversations(2 * USERS, seed)
        block_size = runner.limits.block_size
        longest = max(len(tokens(each[-1])) + each[-1].max_tokens for each in conversations)
        blocks = USERS * longest // block_size
        if on and runner.host.slots != 2 * blocks:
            runner.host = HostPages(runner.caches, 2 * blocks)
        offer = host_offer(runner) if on else None
        engine = InProcess(runner, num_blocks=blocks // 2, host=offer)
        figures = _loop(engine, workload, 2 * USERS, USERS, seed)
        answers = sum(len(each) for each in conversations)
        return {
            "output tokens/s": figures["output tokens/s"],
            "TTFT p50 ms": figures["TTFT p50 ms"],
            "tokens computed": figures["tokens computed"],
            "preemptions": engine.admissions - answers,
            "blocks moved": engine.swaps,
        }

    return run


def _policy(policy: str, few_of: str = "many") -> Run:
    """There is room for eight. A tenant asks for long answers, then `few_of` for a few short ones."""

    def run(runner: Runner, seed: int) -> Figures:
        flood = Workload(prompt_lengths=(32,), output_lengths=(96, 96)).conversations(4 * USERS, seed)
        few = Workload(prompt_lengths=(32,), output_lengths=(16, 16)).conversations(4, seed + 1)
        engine = InProcess(runner, num_blocks=USERS * 128 // runner.limits.block_size, policy=policy)
        many = [engine.ask(questions[0], tenant="many").answer for questions in flood]
        late = [engine.ask(questions[0], tenant=few_of).answer for questions in few]
        engine.run()
        seconds = max(answer.ended for answer in many + late) - many[0].sent
        return {
            "E2E p50 ms of the few": round(1000 * median(each.ended - each.sent for each in late), 1),
            "E2E p50 ms of the many": round(1000 * median(each.ended - each.sent for each in many), 1),
            "output tokens/s": round(sum(each.output_tokens for each in many + late) / seconds, 1),
        }

    return run


def _pages(quantized: bool) -> Run:
    """The same model with pages of its own: of int8, or of its own type."""

    def run(runner: Runner, seed: int) -> Figures:
        limits, model = runner.limits, runner.model
        blocks = USERS * 640 // limits.block_size
        name = "int8" if quantized else AUTO
        kv = runner.kernels.kv_format(name, model.dtype)
        caches = make_caches(model.config, blocks, limits.block_size, kv, runner.device)
        other = Runner(model, caches, runner.kernels, replace(limits, num_blocks=blocks))
        figures = _loop(InProcess(other), Workload(output_lengths=(32, 32)), 2 * USERS, USERS, seed)
        held = sum(tensor.nbytes for cache in caches for tensor in cache.tensors())
        form = {"dtype": str(model.dtype).removeprefix("torch."), "kv_dtype": name}
        return {
            "bytes of KV a token": held // (blocks * limits.block_size),
            "output tokens/s": figures["output tokens/s"],
            "perplexity, shipped model": round(perplexity(runner_of(form), DOCUMENTS), 4),
        }

    return run


def _users(users: int) -> Run:
    def run(runner: Runner, seed: int) -> Figures:
        workload = Workload(prompt_lengths=(32, 128), output_lengths=(8, 64))
        return _loop(InProcess(runner), workload, 2 * USERS, users, seed)

    return run


GROWING = Workload(prompt_lengths=(32,), output_lengths=(224, 224))
CHATS = Workload(prompt_lengths=(96,), output_lengths=(32, 32), turns=4)
"""Each question comes with the conversation before it."""

DOCUMENTS = 40
"""Of the held-out ones: enough to see that nothing is wrong; `ops/bench/perplexity.py` reads them all."""

CHUNK = 128
"""Tokens of a step with chunked prefill."""

MECHANISMS = (
    Mechanism(
        "prefix sharing",
        f"{USERS} users, prompts of 480 tokens of which 432 are everybody's",
        _shared_prefix(True),
        _shared_prefix(False),
    ),
    Mechanism(
        "prefix sharing, nothing to share",
        f"{USERS} users, prompts of 32, 128 and 512 tokens",
        _nothing_shared(True),
        _nothing_shared(False),
    ),
    Mechanism(
        "chunked prefill",
        f"{USERS} answers under way when a prompt of 2048 tokens comes: in steps of {CHUNK}, or in one",
        _long_prompt(CHUNK),
        _long_prompt(0),
    ),
    Mechanism(
        "parallel samples",
        "4 answers to a prompt of 505 tokens: n = 4, or 4 requests",
        _samples(True),
        _samples(False),
    ),
    Mechanism(
        "beams that fork",
        "4 beams on from a prompt of 505 tokens, 32 tokens long: a search, or 4 requests that share nothing",
        _samples(True, beams=4),
        _samples(False),
    ),
    Mechanism(
        "an ample pool instead of preemption",
        f"{USERS} users, sequences of 256 tokens: room for all, or for half of them",
        _pool(False),
        _pool(True),
    ),
    Mechanism(
        "host memory, when sequences are preempted",
        f"{USERS} users, sequences of 256 tokens, room for half of them: on the host for all, or for none",
        _host_memory(True, GROWING),
        _host_memory(False, GROWING),
    ),
    Mechanism(
        "host memory, when prefixes are pushed out",
        f"{USERS} chats of 4 questions, room for half of them: on the host for all, or for none",
        _host_memory(True, CHATS),
        _host_memory(False, CHATS),
    ),
    Mechanism(
        "continuous batching",
        f"prompts of 32 and 128 tokens, answers of 8 to 64: {USERS} users at once, or one",
        _users(USERS),
        _users(1),
    ),
    Mechanism(
        "fair shares",
        "one tenant asks for 32 answers of 96 tokens, then for 4 of 16 another one, or the same; room for 8",
        _policy("fcfs", few_of="few"),
        _policy("fcfs"),
    ),
    Mechanism(
        "shortest job first",
        "32 answers of 96 tokens are asked for, then 4 of 16; room for 8: shortest, or fcfs",
        _policy("shortest"),
        _policy("fcfs"),
    ),
    Mechanism(
        "pages of int8",
        f"{USERS} users, prompts of 32, 128 and 512 tokens: pages of int8, or of the model's type",
        _pages(True),
        _pages(False),
    ),
    Mechanism(
        "drafts from the text itself",
        "2 greedy answers of 128 tokens to prompts that repeat a sentence, shipped model: lookup, or none",
        drafts("ngram", 2, repeating=True),
        drafts("off", 2, repeating=True),
    ),
    Mechanism(
        "drafts of a draft model",
        "one greedy story of 128 tokens, shipped model: with its draft model, or alone",
        drafts("draft", 1, repeating=False),
        drafts("off", 1, repeating=False),
    ),
    Mechanism(
        "drafts of a layer",
        "one greedy story of 128 tokens, shipped model: with its layer for multi-token prediction, or alone",
        drafts("mtp", 1, repeating=False),
        drafts("off", 1, repeating=False),
    ),
    Mechanism(
        "drafts of a prediction",
        "one greedy story of 128 tokens, of which 19 of 20 were predicted, shipped model: as drafts, or none",
        predicted(True),
        predicted(False),
    ),
    Mechanism(
        "drafts of what a grammar forces",
        "2 greedy answers in JSON, half of whose tokens are forced: these as drafts, or one a step",
        forced(True, 2),
        forced(False, 2),
    ),
    Mechanism(
        "drafts of what 32 grammars force",
        "32 greedy answers in JSON, half of whose tokens are forced: these as drafts, or one a step",
        forced(True, 32),
        forced(False, 32),
    ),
)


def measure(
    runner: Runner, settings: WorkerSettings, rounds: int, seed: int, names: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Every mechanism (or those named) with and without, `rounds` times in turns: medians, and ratios with
    their spread, by the mechanism's name."""
    dtype = str(runner.dtype).removeprefix("torch.")
    found: dict[str, Any] = {}
    for mechanism in MECHANISMS:
        if names and mechanism.name not in names:
            continue
        for run in (mechanism.present, mechanism.absent):  # warm up
            run(runner, seed)
        pairs = [
            (mechanism.present(runner, seed + number), mechanism.absent(runner, seed + number))
            for number in range(1, rounds + 1)
        ]
        found[mechanism.name] = {"work": mechanism.work, "figures": _figures(pairs)}
    for deployed in DEPLOYED:
        if not names or deployed.name in names:
            pairs = deployed.pairs(settings, rounds, seed)
            found[deployed.name] = {"work": deployed.work, "figures": _figures(pairs)}
    return {name: {"model": settings.served_name, "dtype": dtype, **one} for name, one in found.items()}


def _figures(pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, Any]:
    return {name: _compared(name, pairs) for name in pairs[0][0]}


def _compared(name: str, pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, Any]:
    ratios = sorted(present[name] / absent[name] for present, absent in pairs if absent[name])
    return {
        "with": median(present[name] for present, _ in pairs),
        "without": median(absent[name] for _, absent in pairs),
        "ratio": [round(ratios[0], 3), round(median(ratios), 3), round(ratios[-1], 3)] if ratios else None,
    }


def table(found: Mapping[str, Any]) -> str:
    """The result for a person."""
    lines = []
    for name, one in found.items():
        lines.append(f"{name}: {one['work']}")
        for figure, values in one["figures"].items():
            ratio = values["ratio"]
            spread = f"{ratio[1]:.2f}x ({ratio[0]:.2f} to {ratio[2]:.2f})" if ratio else ""
            lines.append(f"  {figure:<28}{values['with']:>12g} {values['without']:>12g}  {spread}")
    return "\n".join([f"{'':<30}{'with':>12} {'without':>12}  with / without", *lines])
