"""The contest between competitors whose answers are known."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from ops.bench.compare import Contest, Turn, hold, loads_of, ratios, table
from ops.bench.engines.competitor import Measured
from ops.bench.load.client import Answer
from ops.bench.load.workload import Question, Workload
from ops.bench.report.plots import plot_compare
from ops.bench.rig.accounting import Books, static_batch

CONTEST = Contest(Workload((4, 8), (5, 5)), concurrency=(1, 3), requests=4, rounds=3, seed=1)


def answered(question: Question, pace: float) -> Answer:
    """A token every `pace` seconds."""
    times = [pace * (number + 1) for number in range(question.max_tokens)]
    return Answer(0.0, times, times[-1], len(question.prompt), question.max_tokens)


@dataclass
class Steady:
    """Answers one request after the other at a steady pace, and remembers what it was asked."""

    name: str
    pace: float
    cpu: float = 0.0
    asked: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    process: str = ""

    def ask(self, questions: Sequence[Question], users: int) -> Measured:
        self.asked.append((users, tuple(str(question.prompt) for question in questions)))
        self.order.append(self.name)
        answers = [answered(question, self.pace) for question in questions]
        return Measured(answers, sum(answer.ended for answer in answers), static_batch(questions))

    def cpu_seconds(self) -> dict[str, float]:
        """Uses time while nobody looks; a competitor may have a process in common with another."""
        self.cpu += 0.5
        return {self.process or self.name: self.cpu}


def test_all_are_asked_the_same_and_nothing_twice() -> None:
    both = Steady("quire", 0.1), Steady("other", 0.2)
    hold(CONTEST, both)
    assert both[0].asked == both[1].asked
    assert [users for users, _ in both[0].asked] == [3] + [1, 3] * 3  # first to warm up
    assert [len(prompts) for _, prompts in both[0].asked[1:]] == [4, 6] * 3
    prompts = [prompt for _, asked in both[0].asked[1:] for prompt in asked]
    assert len(set(prompts)) == len(prompts)


def test_the_first_of_a_round_is_another_each_time() -> None:
    order: list[str] = []
    both = Steady("quire", 0.1, order=order), Steady("other", 0.2, order=order)
    hold(CONTEST, both)
    assert order[2:] == ["quire", "other"] * 2 + ["other", "quire"] * 2 + ["quire", "other"] * 2


def test_what_others_use_is_told_and_a_common_process_is_no_other() -> None:
    three = Steady("quire", 0.1), Steady("a", 0.1, process="both"), Steady("b", 0.1, process="both")
    (load, _) = loads_of(hold(CONTEST, three), "quire", 1)
    shares = {name: found["others_cpu_share"] for name, found in load["competitors"].items()}
    assert shares["a"] == shares["b"] == pytest.approx(0.5 / 2)  # of Quire alone, in 2 s
    assert shares["quire"] > 0


def test_rates_and_ratios_are_those_of_the_paces() -> None:
    turns = hold(CONTEST, (Steady("quire", 0.1), Steady("other", 0.2)))
    found = loads_of(turns, "quire", 2**20)
    assert [load["concurrency"] for load in found] == [1, 3]
    assert [load["requests_per_round"] for load in found] == [4, 6]
    for load in found:
        quire = load["competitors"]["quire"]
        assert quire["all"]["output_rate"] == 10
        assert quire["all"]["output_tokens"] == 3 * load["requests_per_round"] * 5
        assert quire["all"]["first_token"]["p99"] == pytest.approx(100)
        assert [one["output_rate"] for one in quire["rounds"]] == [10, 10, 10]
        assert quire["wrong"] == 0
        assert load["ratios"].keys() == {"other"}
        ratio = load["ratios"]["other"]
        assert ratio["output_rate"] == {"median": 2, "lowest": 2, "highest": 2}
        assert ratio["itl_p50"]["median"] == ratio["ttft_p99"]["median"] == 0.5


def test_the_spread_of_ratios_is_that_of_the_rounds() -> None:
    question = Question([1, 2], 4)

    def turns(*paces: float) -> list[Turn]:
        return [Turn([question], Measured([answered(question, pace)], 4 * pace), 0.0) for pace in paces]

    spread = ratios(turns(0.1, 0.1, 0.1), turns(0.1, 0.4, 0.2))
    assert spread["output_rate"] == {"median": 2.0, "lowest": 1.0, "highest": 4.0}


def test_wrong_answers_are_counted_and_their_rounds_not_compared() -> None:
    questions = [Question([1], 4), Question([2], 4)]
    good = Turn(questions, Measured([answered(one, 0.1) for one in questions], 1.0), 0.0)
    short = answered(Question([2], 3), 0.01)
    failed = Answer(0.0, error="gone")
    bad = Turn(questions, Measured([short, failed], 0.1), 0.0)
    assert (good.wrong, bad.wrong) == (0, 2)
    assert ratios([good, good], [bad, bad]) == {}
    assert ratios([good, good], [good, bad])["output_rate"] == {"median": 1, "lowest": 1, "highest": 1}
    (load,) = loads_of({1: {"quire": [good], "other": [bad]}}, "quire", 1)
    assert load["competitors"]["other"]["wrong"] == 2
    assert load["competitors"]["other"]["first_error"] == "gone"


def test_the_table_and_the_drawings_name_everybody(tmp_path) -> None:
    turns = hold(CONTEST, (Steady("quire", 0.1), Steady("other", 0.2)))
    turns[3]["silent"] = turns[1]["silent"] = [
        Turn(turn.questions, Measured(turn.measured.answers, 1.0), 0.0) for turn in turns[1]["other"]
    ]
    results = {
        "loads": loads_of(turns, "quire", 2**20),
        "absent": {"third": "no such program"},
        "agreement": [{"with": "other", "asked": 3, "same": 2, "parted_after": 9}],
    }
    printed = table(results)
    for words in ("silent", "third: no such program", "2 of 3", "output_rate 2.00 (2.00 to 2.00)"):
        assert words in printed
    drawn = plot_compare(results, tmp_path)
    assert len(drawn) == 3
    for path in drawn:
        text = path.read_text()
        assert text.startswith("<svg ")
        assert len(text) < 20_000
        assert "quire" in text
    assert ["silent" in path.read_text() for path in drawn] == [True, True, False]
    first = drawn[0].read_bytes()
    assert plot_compare(results, tmp_path)[0].read_bytes() == first


def test_books_of_rounds_are_added() -> None:
    question = Question([1] * 4, 3)
    turn = Turn([question], Measured([answered(question, 0.1)], 0.3, Books(6, 8, [4], [3])), 0.0)
    (load,) = loads_of({1: {"quire": [turn, turn]}}, "quire", 2**20)
    assert load["competitors"]["quire"]["batch"]["batch_efficiency"] == 0.75
    assert load["competitors"]["quire"]["batch"]["kv_wasted_mean_mib"] == 1
