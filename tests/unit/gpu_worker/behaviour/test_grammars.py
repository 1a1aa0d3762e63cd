"""Answers that follow a grammar: what the text must be, and that it is the same however it comes about."""

import json
import os
import shutil
import threading
import time
from array import array
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from gpu_worker.errors import PlanError
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.reference.sampling import sample as reference_sample
from gpu_worker.machine.cores import restrict_to, usable
from gpu_worker.sampling.grammars import MOST_SLOW_SECONDS, THREADS, Grammars, _Held, _Matching
from gpu_worker.step.runner import Runner
from ops.model_directory.grammars import Vocabulary
from proto.sampling_pb2 import Grammar, SamplingParams
from proto.worker_pb2 import NewGrammar
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import SequenceGroup
from tests.support.closed_loop import ClosedLoop
from tests.unit.gpu_worker.conftest import back_end, makers

SHIPPED = Path("ops/tiny_model/model")
END = 4
PROMPT = [1, 217, 3, 88, 41, 41, 9, 60]
LONGEST = 200

_SCALARS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 6},
    {"type": "integer", "minimum": -40, "maximum": 1200},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["red", "green", 7, None]},
    {"const": {"a": [1, "two"]}},
    {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$", "maxLength": 9},
    {"type": "string", "format": "date"},
]


def schema(number: int) -> dict[str, Any]:
    """Another schema for each number, whose texts have some dozen tokens."""
    chance = Random(number)
    some = [chance.choice(_SCALARS) for _ in range(3)]
    match number % 4:
        case 0:
            properties = dict(zip(("name", "age", "ok"), some, strict=True))
            required = chance.sample(sorted(properties), 2)
            return {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        case 1:
            return {"type": "array", "items": some[0], "minItems": 1, "maxItems": 3}
        case 2:
            return {"anyOf": some}
    items = {"type": "array", "prefixItems": some, "minItems": 3, "items": False}
    return {"type": "object", "properties": {"x": items}, "required": ["x"], "additionalProperties": False}


def grammar_of(text: str) -> Grammar:
    return Grammar(text=text, end_tokens=[END])


def json_grammar(number: int) -> Grammar:
    options = {"whitespace_flexible": False}
    return grammar_of(LLMatcher.grammar_from_json_schema(json.dumps(schema(number)), options))


def numbered(number: int, grammar: Grammar) -> NewGrammar:
    return NewGrammar(number=number, grammar=grammar)


def regex(pattern: str) -> Grammar:
    return grammar_of(LLMatcher.grammar_from_regex(pattern))


TOKENIZER = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))


BOUNDED = (
    'start: "It is " x " and " x "."\nx[max_tokens=3]: /[a-z ]*/',
    'start: x y\nx[stop="e"]: /[a-z]*/\ny: " is " /[0-9]{2}/',
    'start: x\nx[max_tokens=9]: %json {"properties": {"name": {"maxLength": 4}}, "required": ["name"]}',
)
"""Grammars whose matchers cannot take tokens back."""


def text_of(tokens: list[int]) -> str:
    text: str = TOKENIZER.decode(tokens)
    return text


@pytest.fixture(scope="module")
def make() -> SimpleNamespace:
    """One back end: but for the choice of a token, all do the same."""
    return makers(back_end(build.supported()[0] if build.supported() else "torch"))


@pytest.fixture(scope="module")
def worded(make: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of one layer with the shipped model's vocabulary."""
    model = make.llama(vocab_size=4096, num_hidden_layers=1, max_position_embeddings=512)
    directory: Path = tmp_path_factory.mktemp("worded")
    model.save_pretrained(directory)
    shutil.copy(SHIPPED / "tokenizer.json", directory)
    return directory


def runner_of(make: SimpleNamespace, directory: Path, **changes: int) -> Runner:
    values = {"max_model_len": 256, "num_blocks": 256, **changes}
    runner: Runner = make.runner(directory, **values)
    runner.batch.grammars.directory = directory
    return runner


def alone(
    make: SimpleNamespace, runner: Runner, sampling: SamplingParams, grammar: Grammar, **changes: Any
) -> list[int]:
    """The answer of one sequence, one step after the other; its end token included."""
    runner.reset()
    driver = make.Driver(runner)
    driver.bring(grammar)
    sequence = driver.admit(1, PROMPT, sampling=sampling, grammar=1, **changes)
    while len(sequence.tokens) < len(PROMPT) + LONGEST:
        driver.step((sequence, len(sequence.tokens) - sequence.computed))
        if sequence.tokens[-1] == END and len(sequence.tokens) > len(PROMPT):
            break
    tokens: list[int] = sequence.tokens[len(PROMPT) :]
    return tokens


def test_answers_at_temperature_1_are_valid_for_a_hundred_schemas(make, worded) -> None:
    """Beside each other and answers that have no grammar, planned ahead, preempted, as samples that fork."""
    runner = runner_of(make, worded, num_blocks=80, max_slots=6)
    loop = ClosedLoop(runner)
    groups = {}
    for number in range(100):
        grammar = json_grammar(number) if number % 10 else None
        request = Request(
            str(number),
            array("i", PROMPT[: 3 + number % 5]),
            max_tokens=LONGEST if number % 10 else 20,
            stop_token_ids=frozenset((END,)),
            n=2 if number % 7 == 0 else 1,
            sampling=make.sampled(seed=number),
            grammar=grammar.SerializeToString() if grammar else b"",
        )
        groups[loop.ask(request)] = number
    answers: dict[tuple[int, int], list[int]] = {}
    while any(group.unfinished for group in groups):
        for group, index, token, *_ in loop.step():
            answers.setdefault((groups[group], index), []).append(token)
    assert len(answers) == sum(2 if number % 7 == 0 else 1 for number in range(100))
    free = [text_of(tokens) for (number, _), tokens in answers.items() if number % 10 == 0]
    assert len(set(free)) > 9
    different = set()
    for (number, _), tokens in answers.items():
        if number % 10:
            assert tokens[-1] == END, (schema(number), text_of(tokens))
            value = json.loads(text_of(tokens))
            jsonschema_rs.validate(schema(number), value)
            different.add(json.dumps(value))
    assert len(different) > 60, "a model that repeats itself shows little"


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_an_answer_is_the_same_with_drafts(make, worded, right) -> None:
    """Drafts that the grammar allows or not, that hold or not."""
    runner = runner_of(make, worded, block_size=2)
    for number, grammar in enumerate((*map(json_grammar, range(12)), *map(grammar_of, BOUNDED))):
        sampling = make.sampled(seed=number)
        truth = alone(make, runner, sampling, grammar)
        runner.reset()
        driver, chance = make.Driver(runner, seed=number), Random(number)
        driver.bring(grammar)
        sequence = driver.admit(1, PROMPT, sampling=sampling, grammar=1)
        while (gained := len(sequence.tokens) - len(PROMPT)) < len(truth):
            length = min(chance.randrange(6), len(truth) - gained - 1)
            drafts = [
                token if chance.random() < right else chance.randrange(4096)
                for token in truth[gained : gained + length]
            ]
            driver.step((sequence, len(sequence.tokens) - sequence.computed), drafts={1: drafts})
        assert sequence.tokens[len(PROMPT) :] == truth


@pytest.mark.parametrize("told", ["with the tokens sampled", "one step later", "never"])
def test_what_a_grammar_forces_is_a_draft_that_holds(make, worded, monkeypatch, told) -> None:
    """Answers are what they are one token a step; two plans are under way, and some blocks are missing."""
    runner = runner_of(make, worded, num_blocks=60, max_slots=4)
    known, later = Grammars.forced, SimpleNamespace(is_cuda=True)
    if told == "one step later":  # as on a GPU, where tokens are not yet known
        monkeypatch.setattr(
            Grammars, "forced", lambda self, slots, count, _: known(self, slots, count, later)
        )
    elif told == "never":
        monkeypatch.setattr(Grammars, "forced", lambda *_: {})
    names = ("favourite_colour", "date_of_birth", "remarks")
    fields = {
        "type": "object",
        "properties": {each: {"type": "boolean"} for each in names},
        "required": names,
    }
    text = LLMatcher.grammar_from_json_schema(
        json.dumps({**fields, "additionalProperties": False}), {"whitespace_flexible": False}
    )
    wordy, drafts = grammar_of(text), []
    for number, grammar in enumerate((wordy, json_grammar(3), json_grammar(6))):
        samplings = [make.sampled(seed=seed, logprobs=1) for seed in range(2)]
        truths = {
            (seed, index): alone(make, runner_of(make, worded), sampling, grammar, sequence_index=index)
            for seed, sampling in enumerate(samplings)
            for index in range(2)
        }
        loop, found, groups = ClosedLoop(runner), {}, {}
        for seed, sampling in enumerate(samplings):
            request = Request(
                str(seed),
                array("i", PROMPT),
                max_tokens=LONGEST,
                stop_token_ids=frozenset((END,)),
                n=2,
                sampling=sampling,
                grammar=grammar.SerializeToString(),
            )
            groups[loop.ask(request)] = seed
        while any(group.unfinished for group in groups):
            for group, index, token, *_ in loop.step():
                found.setdefault((groups[group], index), []).append(token)
        assert found == truths
        drafts.append(sum(group.drafts for group in groups))
        assert drafts[number] == sum(group.drafts_held for group in groups), "all hold"
        if grammar is wordy:
            steps, longest = len(loop.step_tokens), max(map(len, truths.values()))
            assert (steps < 0.75 * longest) is (told != "never")
    assert any(drafts) is (told != "never")


def test_an_answer_goes_on_from_its_tokens_alone(make, worded) -> None:
    """At every place, as after a preemption or on another worker; in chunks, too."""
    sampling, grammar = make.sampled(seed=3), json_grammar(4)
    runner = runner_of(make, worded)
    truth = alone(make, runner, sampling, grammar)
    assert len(truth) > 8
    for kept in range(0, len(truth), 3):
        runner.reset()
        driver = make.Driver(runner)
        driver.bring(grammar)
        tokens = PROMPT + truth[:kept]
        sequence = driver.admit(2, tokens, sampling=sampling, prompt_length=len(PROMPT), grammar=1)
        assert driver.generate(sequence, len(truth) - kept, chunk=3) == truth[kept:]


def test_forked_sequences_share_a_grammar(make, worded) -> None:
    """Each sample is another one, as if it had been asked alone."""
    grammar, sampling = json_grammar(8), make.sampled(seed=5)
    runner = runner_of(make, worded)
    truths = [alone(make, runner, sampling, grammar, sequence_index=index) for index in range(3)]
    assert len({tuple(truth) for truth in truths}) > 1
    runner.reset()
    driver = make.Driver(runner)
    driver.bring(grammar, number=9)
    samples = [driver.admit(0, PROMPT, sampling=sampling, grammar=9)]
    driver.step((samples[0], len(PROMPT)))
    size = runner.limits.block_size
    for index in (1, 2):
        whole = len(PROMPT[:-1]) // size * size
        child = driver.admit(
            index,
            PROMPT[whole:],
            sampling=sampling,
            grammar=9,
            sequence_index=index,
            prompt_length=len(PROMPT),
            forked_from=0,
            forked_tokens=whole,
        )
        child.tokens, child.computed = list(PROMPT), whole
        child.blocks = samples[0].blocks[: whole // size]
        samples.append(child)
    while unfinished := [one for one in samples if one.tokens[-1] != END]:
        driver.step(*((one, len(one.tokens) - one.computed) for one in unfinished))
    assert [one.tokens[len(PROMPT) :] for one in samples] == truths


def test_rows_with_a_mask_are_counted(make, worded) -> None:
    runner = runner_of(make, worded)
    answers = [alone(make, runner, make.sampled(seed=seed), regex("[a-z]{9,40}")) for seed in range(2)]
    assert runner.batch.grammars.masked_rows == sum(map(len, answers)) > 8
    runner.reset()
    driver = make.Driver(runner)
    driver.generate(driver.admit(1, PROMPT, sampling=make.sampled(seed=1)), 3)
    assert runner.batch.grammars.masked_rows == sum(map(len, answers)), "without a grammar there is no mask"


def test_a_complete_grammar_leaves_the_end_alone(make, worded) -> None:
    answer = alone(make, runner_of(make, worded), make.sampled(seed=1), regex("yes|no"))
    assert text_of(answer) in ("yes", "no")
    assert answer[-1] == END


def test_rows_planned_ahead_after_the_end_do_no_harm(make, worded) -> None:
    runner = runner_of(make, worded)
    driver = make.Driver(runner)
    grammar, sampling = regex("yes|no"), make.sampled(seed=1)
    driver.bring(grammar)
    sequence = driver.admit(1, PROMPT, sampling=sampling, grammar=1)
    driver.generate(sequence, 12)
    answer = sequence.tokens[len(PROMPT) :]
    upto_end = answer[: answer.index(END) + 1]
    assert len(upto_end) < 12
    assert upto_end == alone(make, runner_of(make, worded), sampling, grammar)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0},
        {"top_k": 5},
        {"top_p": 0.4},
        {"min_p": 0.3},
        {"repetition_penalty": 1.4, "presence_penalty": 1.0, "frequency_penalty": -1.5},
        {"repetition_penalty": 0.7, "top_p": 0.9, "top_k": 40, "temperature": 0.6},
        {"temperature": 0, "presence_penalty": 2.0},
        {"logprobs": 3},
    ],
)
def test_other_parameters_choose_among_what_is_allowed(kernels, worded, changes, monkeypatch) -> None:
    """Every back end chooses as the reference does, after the grammar has left tokens out."""
    make = makers(kernels)
    runner = runner_of(make, worded)
    for number in (0, 3, 5, 6):
        sampling, grammar = make.sampled(seed=number, **changes), json_grammar(number)
        answer = alone(make, runner, sampling, grammar)
        with monkeypatch.context() as patch:
            patch.setattr(type(runner.kernels), "sample", lambda _, *given: reference_sample(*given))
            assert alone(make, runner, sampling, grammar) == answer
        if answer[-1] == END:
            jsonschema_rs.validate(schema(number), json.loads(text_of(answer)))


def test_log_probabilities_are_the_models_own(make, worded) -> None:
    """A token that is forced is as unlikely as the model has it."""
    runner = runner_of(make, worded)
    results = {}
    for grammar in (0, 1):
        runner.reset()
        slot = make.slot(0, PROMPT, [0, 1], sampling=make.sampled(seed=1, logprobs=2), grammar=grammar)
        results[bool(grammar)] = runner.execute(
            make.plan(1, [(0, 0, len(PROMPT), 1)], new_slots=[slot], new_grammars=[numbered(1, regex("yes"))])
        ).logprobs
    assert results[True].top == results[False].top
    assert make.unpack(results[True].logprobs, "<f4")[0] < -3


FAULTS = {
    "not a grammar": ({}, grammar_of("nonsense"), "grammar"),
    "not satisfiable": ({}, grammar_of(LLMatcher.grammar_from_lark("start: A\nA: /a/ & /b/\n")), "grammar"),
    "no text": ({}, grammar_of(""), "grammar"),
    "no end": ({}, Grammar(text=regex("yes").text), "end_tokens"),
    "an unknown end": ({}, Grammar(text=regex("yes").text, end_tokens=[4096]), "end_tokens"),
    "a beam": ({"candidates": 3}, regex("yes"), "beam"),
    "left tokens behind": ({"dropped_tokens": 4}, regex("yes"), "left tokens behind"),
    "not there": ({"grammar": 7}, regex("yes"), "no plan has brought"),
}


@pytest.mark.parametrize(("fields", "grammar", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_bad_grammar_ends_its_own_row_alone(make, worded, fields, grammar, said) -> None:
    runner = runner_of(make, worded)
    sampling = make.sampled(seed=1)
    slots = [
        make.slot(0, PROMPT, [0, 1, 4], sampling=sampling, **{"grammar": 1, **fields}),
        make.slot(1, PROMPT, [2, 3, 5], sampling=sampling, grammar=2),
    ]
    rows = [(0, 0, len(PROMPT), 1), (1, 0, len(PROMPT), 1)]
    grammars = [numbered(1, grammar), numbered(2, regex("yes"))]
    result = runner.execute(make.plan(1, rows, new_slots=slots, new_grammars=grammars))
    assert [error.row for error in result.errors] == [0]
    assert said in result.errors[0].message
    first, second = make.unpack(result.tokens)
    assert first == -1
    assert "yes".startswith(text_of([second]))
    result = runner.execute(make.plan(2, [(slot, len(PROMPT), 1, 1) for slot in (0, 1)]))
    assert [error.row for error in result.errors] == [0], "it fails for good"


def test_tokens_that_do_not_follow_the_grammar_end_the_row(make, worded) -> None:
    """What a caller hands back as the answer so far may be anything."""
    runner = runner_of(make, worded)
    slot = make.slot(
        0,
        [*PROMPT, 88, 99],
        [0, 1, 2],
        sampling=make.sampled(seed=1),
        prompt_length=len(PROMPT),
        grammar=1,
    )
    rows = [(0, 0, len(PROMPT) + 2, 1)]
    result = runner.execute(make.plan(1, rows, new_slots=[slot], new_grammars=[numbered(1, regex("yes"))]))
    assert "grammar" in result.errors[0].message
    assert not result.errors[0].grammar, "the answer so far is at fault"


def test_a_token_without_a_row_of_logits_cannot_follow(make, worded, tmp_path) -> None:
    """The tokenizer has two more than the model, and one of them is all that the grammar takes."""
    shutil.copytree(worded, tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(worded / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|one|>", "<|two|>"])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    runner = runner_of(make, tmp_path / "model")
    slots = [make.slot(0, PROMPT, [0, 1], sampling=make.sampled(seed=1), grammar=1)]
    slots.append(make.slot(1, PROMPT, [2, 3], sampling=make.sampled(seed=1), grammar=2))
    grammars = [
        numbered(number, grammar_of(LLMatcher.grammar_from_lark(f"start: {text}")))
        for number, text in enumerate(("<[4097]>", '<[4097]> | "yes"'), 1)
    ]
    rows = [(slot, 0, len(PROMPT), 1) for slot in (0, 1)]
    result = runner.execute(make.plan(1, rows, new_slots=slots, new_grammars=grammars))
    assert [(error.row, error.grammar) for error in result.errors] == [(0, True)]
    assert "no text follows" in result.errors[0].message
    assert "yes".startswith(text_of([make.unpack(result.tokens)[1]]))


def test_a_token_without_a_row_of_logits_is_not_forced(make, worded, tmp_path) -> None:
    """The scheduler would take it for a fault of the worker."""
    shutil.copytree(worded, tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(worded / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|one|>"])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    runner = runner_of(make, tmp_path / "model")
    grammar = grammar_of(LLMatcher.grammar_from_lark('start: "yes, yes" <[4096]> "no"'))
    slot = make.slot(0, PROMPT, [0, 1], sampling=make.sampled(seed=1), grammar=1)
    rows = [(0, 0, len(PROMPT), 1)]
    result = runner.execute(make.plan(1, rows, new_slots=[slot], new_grammars=[numbered(1, grammar)]))
    assert text_of(make.unpack(result.forced.tokens)).endswith("yes")


def test_a_grammar_that_goes_no_further_is_told_apart(make, worded) -> None:
    """Two tokens follow it, and what then may come are more words than a row may have."""
    runner = runner_of(make, worded)
    words = " | ".join(f'"w{number}"' for number in range(3000))
    lark = grammar_of(LLMatcher.grammar_from_lark(f'start: "a" "b" words\nwords: {words}'))
    slot = make.slot(
        0, PROMPT, [0, 1, 2], sampling=make.sampled(seed=1), prompt_length=len(PROMPT), grammar=1
    )
    first = make.plan(1, [(0, 0, len(PROMPT), 1)], new_slots=[slot], new_grammars=[numbered(1, lark)])
    errors = runner.execute(first).errors
    for step in range(2, 5):
        if not errors:
            errors = runner.execute(make.plan(step, [(0, len(PROMPT) + step - 2, 1, 1)])).errors
    assert [(error.row, error.grammar) for error in errors] == [(0, True)]
    assert "3001 items" in errors[0].message


def test_a_grammar_that_takes_ever_more_time_ends_the_row(make, worded) -> None:
    """Every text of it can be read in as many ways as there are trees, and it meets no limit for long."""
    runner = runner_of(make, worded)
    lark = grammar_of(LLMatcher.grammar_from_lark('start: s "!"\ns: /[a-z]/ | s s | s s s'))
    slot = make.slot(
        0, PROMPT, [*range(64)], sampling=make.sampled(seed=1), prompt_length=len(PROMPT), grammar=1
    )
    plan = make.plan(1, [(0, 0, len(PROMPT), 1)], new_slots=[slot], new_grammars=[numbered(1, lark)])
    seconds = []
    errors = runner.execute(plan).errors
    for step in range(2, LONGEST):
        if not errors:
            began = time.thread_time()
            errors = runner.execute(make.plan(step, [(0, len(PROMPT) + step - 2, 1, 1)])).errors
            seconds.append(time.thread_time() - began)
    assert [(error.row, error.grammar) for error in errors] == [(0, True)]
    assert "too much time" in errors[0].message
    assert max(seconds) < 0.1, "its hundredth token would take a second"


def test_a_slot_without_a_grammar_costs_nothing(make, worded, monkeypatch) -> None:
    """Not even after a sequence that had one."""
    runner = runner_of(make, worded)
    alone(make, runner, make.sampled(seed=1), regex("yes"))
    monkeypatch.setattr(runner.batch.grammars, "masks", None)
    runner.reset()
    answers = []
    for each in (runner, runner_of(make, worded)):  # the second one has never had a grammar
        driver = make.Driver(each)
        answers.append(driver.generate(driver.admit(1, PROMPT, sampling=make.sampled(seed=1)), 3))
    assert answers[0] == answers[1]


@pytest.mark.skipif(len(usable()) < 2 or not Path("/proc/self/task").exists(), reason="needs Linux and cores")
def test_masks_are_made_on_all_cores(make, worded) -> None:
    """Though the thread that wants them is bound to one, as the engine's is."""

    def threads() -> set[int]:
        return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}

    before = threads()
    runner = runner_of(make, worded)
    runner.batch.grammars.prepare([END])
    found: list[set[int]] = []

    def engine() -> None:
        restrict_to(usable()[:1])
        alone(make, runner, make.sampled(seed=1), regex("yes"))
        found.append(threads() - before - {threading.get_native_id()})

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    made = [os.sched_getaffinity(number) for number in found[0] & threads()]
    assert len(made) > THREADS, "those that make masks, and one that compiles"
    assert all(cores == set(usable()) for cores in made)


def test_the_vocabulary_is_read_before_the_first_step(make, worded, monkeypatch) -> None:
    """While the library reads it, no other thread of the process runs."""
    read = []

    class Noted(Vocabulary):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            read.append(threading.current_thread())

    monkeypatch.setattr("gpu_worker.sampling.grammars.Vocabulary", Noted)
    runner = runner_of(make, worded)
    runner.batch.grammars.prepare([END, 10**6])  # that without a row ends nothing
    assert read == [threading.current_thread()]
    assert alone(make, runner, make.sampled(seed=1), regex("yes"))[-1] == END
    assert len(read) == 1


CONTRADICTIONS = {
    "two of one number": ({"new_grammars": [numbered(3, regex("a"))] * 2}, "number 3"),
    "number 0": ({"new_grammars": [numbered(0, regex("a"))]}, "number 0"),
    "dropped without being there": ({"dropped_grammars": [8]}, "no grammar has number 8"),
}


@pytest.mark.parametrize(("fields", "said"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_numbers_that_contradict_each_other_end_the_call(make, worded, fields, said) -> None:
    with pytest.raises(PlanError, match=said):
        runner_of(make, worded).execute(make.plan(1, **fields))


def test_a_grammar_that_is_dropped_is_forgotten(make, worded) -> None:
    runner = runner_of(make, worded)
    grammars = runner.batch.grammars
    runner.execute(make.plan(1, new_grammars=[numbered(each, regex("a" * each)) for each in (1, 2, 3)]))
    runner.execute(make.plan(2, dropped_grammars=[1, 3]))
    assert list(grammars._held) == [2]
    runner.reset()
    assert not grammars._held


def test_no_step_waits_for_the_compiler(make, worded) -> None:
    """One answer comes to its end while another's grammar is being compiled. Both are what they are alone."""
    runner = runner_of(make, worded)
    truths = [alone(make, runner, make.sampled(seed=seed), json_grammar(4)) for seed in (1, 2)]
    loop = ClosedLoop(runner)
    compile_now, grammars = threading.Event(), runner.batch.grammars

    def ask(seed: int, grammar: Grammar) -> SequenceGroup:
        request = Request(
            str(seed),
            array("i", PROMPT),
            max_tokens=LONGEST,
            stop_token_ids=frozenset((END,)),
            sampling=make.sampled(seed=seed),
            grammar=grammar.SerializeToString(),
        )
        return loop.ask(request)

    def until_end(group: SequenceGroup) -> list[int]:
        tokens = []
        while group.unfinished:
            tokens += [gain.token for gain in loop.step() if gain.group is group]
        return tokens

    first = ask(1, json_grammar(4))
    tokens = [gain.token for gain in loop.step()]
    while not tokens:
        tokens = [gain.token for gain in loop.step()]
    grammars._thread.submit(compile_now.wait)  # what the compiler does before takes as long as it likes
    second = ask(2, Grammar(text=json_grammar(4).text, end_tokens=[END, END]))
    assert tokens + until_end(first) == truths[0]
    assert second.sequences[0].output_tokens == 0
    compile_now.set()
    assert until_end(second) == truths[1]


def test_a_long_token_counts_at_once_and_a_long_wait_does_not(make, worded) -> None:
    grammars = runner_of(make, worded).batch.grammars
    matching = _Matching(_Held(frozenset(), Future()), 0)

    def compute() -> None:
        until = time.thread_time() + 2 * MOST_SLOW_SECONDS
        while time.thread_time() < until:
            pass

    grammars._counted = time.thread_time()
    grammars._timed(matching, partial(time.sleep, 2 * MOST_SLOW_SECONDS))
    assert matching.slow_seconds == 0
    grammars._timed(matching, compute)
    assert matching.slow_seconds > MOST_SLOW_SECONDS
    counted = matching.slow_seconds
    grammars._timed(matching, partial(time.sleep, 2 * MOST_SLOW_SECONDS))
    assert matching.slow_seconds == counted, "what was computed before it is not counted twice"
