"""Several engines, the same questions, in turns: what `quire bench compare` does.

Every round asks every competitor at every concurrency, each time in another order, so that what the machine
does meanwhile hits all of them. Questions are the same for all within a round and new in every round, so that
no prefix cache knows them. Ratios are taken within a round, and their spread is told.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ops.bench.engines.agreement import agreement
from ops.bench.engines.competitor import Competitor, Measured, Terms
from ops.bench.engines.competitors import Quire, Started, Transformers, competing
from ops.bench.load.load import Summary, summarize
from ops.bench.load.workload import Question, Workload
from ops.bench.record import aligned, write
from ops.bench.rig.accounting import Books

WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Contest:
    """What is asked of every competitor."""

    workload: Workload
    concurrency: tuple[int, ...]
    requests: int
    """Least of a measurement. It is at least two for each user, and as many for all users."""
    rounds: int
    seed: int

    def questions(self, round_number: int, users: int) -> list[Question]:
        """The same for all competitors; no two calls with other numbers draw a prompt in common."""
        count = users * max(2, -(-self.requests // users))
        seed = random.Random(f"{self.seed} {round_number} {users}").getrandbits(48)
        return [question for (question,) in self.workload.conversations(count, seed)]

    def warm_up(self) -> list[Question]:
        """As many at once as will ever be, a few tokens out: what memory they need has been taken then."""
        lengths = (WARM_UP_TOKENS, WARM_UP_TOKENS)
        workload = Workload(self.workload.prompt_lengths, lengths)
        return [question for (question,) in workload.conversations(max(self.concurrency), self.seed)]


@dataclass(frozen=True)
class Turn:
    """One competitor's answers to one round's questions at one concurrency."""

    questions: Sequence[Question]
    measured: Measured
    others_cpu: float
    """CPU time that the others took meanwhile, as a share of one core."""

    @property
    def wrong(self) -> int:
        """Answers that failed or have not as many tokens as were asked for."""
        asked = Counter(question.max_tokens for question in self.questions)
        got = Counter(answer.output_tokens for answer in self.measured.answers if not answer.error)
        return (asked - got).total()

    def summary(self) -> Summary:
        return summarize(self.measured.answers, self.measured.seconds)


def hold(contest: Contest, competitors: Sequence[Competitor]) -> dict[int, dict[str, list[Turn]]]:
    """The turns of each round by concurrency and name."""
    for competitor in competitors:
        questions = contest.warm_up()
        competitor.ask(questions, len(questions))
    turns: dict[int, dict[str, list[Turn]]] = {
        users: {competitor.name: [] for competitor in competitors} for users in contest.concurrency
    }
    for number in range(contest.rounds):
        for users in contest.concurrency:
            questions = contest.questions(number, users)
            first = number % len(competitors)
            for competitor in (*competitors[first:], *competitors[:first]):
                others = [other for other in competitors if other is not competitor]
                turn = _turn(competitor, others, questions, users)
                turns[users][competitor.name].append(turn)
                _say(f"round {number + 1}, {users} at once, {competitor.name}: {_in_short(turn)}")
    return turns


def _turn(
    competitor: Competitor, others: Sequence[Competitor], questions: Sequence[Question], users: int
) -> Turn:
    before = _cpu_seconds(others)
    measured = competitor.ask(questions, users)
    after = _cpu_seconds(others)
    own = competitor.cpu_seconds()  # two competitors may be one process
    used = sum(after[process] - before.get(process, 0.0) for process in after.keys() - own.keys())
    return Turn(questions, measured, used / measured.seconds)


def _cpu_seconds(competitors: Iterable[Competitor]) -> dict[str, float]:
    return {process: used for each in competitors for process, used in each.cpu_seconds().items()}


def _in_short(turn: Turn) -> str:
    summary = turn.summary()
    wrong = f", {turn.wrong} of {summary.requests} wrong" if turn.wrong else ""
    return f"{summary.output_rate} tokens/s in {summary.seconds} s{wrong}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def loads_of(turns: dict[int, dict[str, list[Turn]]], ours: str, kv_bytes: int) -> list[dict[str, Any]]:
    """What the results say of each concurrency. `kv_bytes`: of one token."""
    return [
        {
            "concurrency": users,
            "requests_per_round": len(next(iter(by_name.values()))[0].questions),
            "competitors": {name: _figures(mine, kv_bytes) for name, mine in by_name.items()},
            "ratios": {
                name: ratios(by_name[ours], theirs) for name, theirs in by_name.items() if name != ours
            },
        }
        for users, by_name in turns.items()
    ]


def _figures(turns: Sequence[Turn], kv_bytes: int) -> dict[str, Any]:
    """All rounds together, and each; the books if the competitor keeps them."""
    answers = [answer for turn in turns for answer in turn.measured.answers]
    kept = [turn.measured.books for turn in turns if turn.measured.books is not None]
    return {
        "all": asdict(summarize(answers, sum(turn.measured.seconds for turn in turns))),
        "rounds": [asdict(turn.summary()) for turn in turns],
        "wrong": sum(turn.wrong for turn in turns),
        "first_error": next((answer.error for answer in answers if answer.error), ""),
        "others_cpu_share": round(max(turn.others_cpu for turn in turns), 4),
        "batch": sum(kept, Books()).summary(kv_bytes) if kept else None,
    }


def ratios(ours: Sequence[Turn], theirs: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Ours over theirs: median, lowest and highest of the rounds in which both had every answer right."""
    pairs = [
        (figures(mine.summary()), figures(other.summary()))
        for mine, other in zip(ours, theirs, strict=True)
        if not mine.wrong and not other.wrong
    ]
    if not pairs:
        return {}
    spread = {}
    for name in pairs[0][0]:
        values = [mine[name] / other[name] for mine, other in pairs if name in mine and name in other]
        if values:
            spread[name] = {
                "median": round(median(values), 4),
                "lowest": round(min(values), 4),
                "highest": round(max(values), 4),
            }
    return spread


def figures(summary: Summary) -> dict[str, float]:
    """What is compared, by short names; times in milliseconds. Answers of one token have no `itl`."""
    kinds = {"ttft": summary.first_token, "itl": summary.between_tokens, "e2e": summary.end_to_end}
    times = {f"{kind}_{share}": value for kind, all in kinds.items() for share, value in all.items()}
    return {"output_rate": summary.output_rate} | times


def compare(
    contest: Contest,
    terms: Terms,
    urls: Mapping[str, str],
    commands: Mapping[str, str],
    check: bool,
    library: bool = True,
) -> dict[str, Any]:
    """Start everybody, hold the contest, and say what came of it: `results` of a result file.

    `urls` and `commands`: servers by name that run, and such to start; `library`: transformers, too.
    Raises `RuntimeError` without Quire.
    """
    with competing(terms, urls, commands, library) as (competitors, absent):
        for name, reason in absent.items():
            _say(f"without {name}: {reason}")
        turns = hold(contest, competitors)
        agreed = _agreements(contest, competitors) if check else []
        packages = {one.name: dict(one.packages) for one in competitors if isinstance(one, Started)}
    return {
        "openmp": "each engine's own",
        "terms": asdict(terms) | {"model": terms.model.name},
        "contest": asdict(contest),
        "absent": absent,
        "commands": dict(commands),
        "packages": packages,
        "kv_set_aside_mib": round(terms.kv_tokens * terms.kv_bytes / 2**20, 3),
        "loads": loads_of(turns, competitors[0].name, terms.kv_bytes),
        "agreement": agreed,
    }


def _agreements(contest: Contest, competitors: Sequence[Competitor]) -> list[dict[str, object]]:
    (quire,) = (one for one in competitors if isinstance(one, Quire))
    others = [one for one in competitors if isinstance(one, Transformers)]
    questions = contest.questions(-1, len(contest.workload.prompt_lengths))
    return [agreement(quire, other, questions) for other in others]


def save(path: Path, seed: int, results: dict[str, Any]) -> None:
    others = {name: version for one in results["packages"].values() for name, version in one.items()}
    write(path, "compare", seed, results, others)


def table(results: dict[str, Any]) -> str:
    """The results for a person; times in milliseconds, memory in MiB."""
    loads = results["loads"]
    head = "at once", "competitor", "wrong", "out tok/s", "all tok/s", "TTFT p50", "p99", "ITL p50", "p99"
    rows: list[tuple[str, ...]] = [(*head, "E2E p50", "p99", "batch eff.", "KV peak", "KV wasted")]
    for load in loads:
        for name, found in load["competitors"].items():
            rows.append((str(load["concurrency"]), name, str(found["wrong"]), *_cells(found)))
    lines = [aligned(rows), ""]
    for load in loads:
        for name, spread in load["ratios"].items():
            told = ", ".join(
                f"{figure} {one['median']:.2f} ({one['lowest']:.2f} to {one['highest']:.2f})"
                for figure, one in spread.items()
                if not figure.endswith("p90")
            )
            lines.append(f"{load['concurrency']} at once, over {name}: {told or 'no round without errors'}")
    lines += [f"not there: {name}: {reason}" for name, reason in results["absent"].items()]
    for one in results["agreement"]:
        lines.append(f"{one['same']} of {one['asked']} greedy answers are the same as of {one['with']}")
    return "\n".join(lines)


def _cells(found: dict[str, Any]) -> list[str]:
    every, batch = found["all"], found["batch"]
    cells = [f"{every['output_rate']:.1f}", f"{every['total_rate']:.1f}"]
    for kind in ("first_token", "between_tokens", "end_to_end"):
        cells += [f"{every[kind][share]:.1f}" if every[kind] else "-" for share in ("p50", "p99")]
    if batch is None:
        return [*cells, "-", "-", "-"]
    shares = f"{batch['batch_efficiency']:.1%}", f"{batch['kv_held_peak_mib']:.1f}"
    return [*cells, *shares, f"{batch['kv_wasted_share']:.1%}"]
