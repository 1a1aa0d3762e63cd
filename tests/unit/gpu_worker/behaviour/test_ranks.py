"""A worker of two processes: what it answers, and what it says when it cannot start."""

import json
import os
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from llguidance import LLMatcher
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from gpu_worker.errors import CapacityError, ModelError, PlanError
from gpu_worker.kernels.cpu import library
from gpu_worker.ranks.group import own_cores
from gpu_worker.sampling import grammars
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.result import NOT_FINITE
from gpu_worker.step.runner import Runner
from proto.sampling_pb2 import Grammar
from proto.worker_pb2 import NewGrammar
from scheduler_svc.core.request import Pooling, Request
from tests.support.closed_loop import ClosedLoop
from tests.unit.gpu_worker.conftest import Driver, greedy, llama, new_slot, plan, sampled, unpack

ROOT = Path(__file__).parents[4]
PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28]
POISON = 66
"""A token whose embedding is not finite. Nothing here draws it otherwise."""
DIES = """
import sys, time
from gpu_worker.errors import CapacityError
from gpu_worker.ranks.processes import Order
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
try:
    load(WorkerSettings(kv_memory=4096))
except CapacityError as error:
    print(error)
load(WorkerSettings()).followers._send(Order.PLAN, b"no plan")
print("a rank may fail", flush=True)
time.sleep(60)
"""
"""Ranks that both find that memory is too small, then one that alone is told what is no plan."""
RAISES = """
from gpu_worker.models.decoder import Decoder
plain = Decoder.__call__
def call(self, tokens, *rest):
    if (tokens == 66).any():
        raise ZeroDivisionError("of all ranks")
    return plain(self, tokens, *rest)
Decoder.__call__ = call
"""
"""Python runs it at the start of each rank's process, as `sitecustomize`: a token's step raises an error."""
GOES_ON = """
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from tests.unit.gpu_worker.behaviour.test_ranks import POISON, PROMPT
from tests.unit.gpu_worker.conftest import Driver
pair = load(WorkerSettings())
for tokens in (PROMPT, [*PROMPT[:3], POISON], PROMPT):
    driver = Driver(pair)
    try:
        print(driver.generate(driver.admit(0, tokens), 8))
    except ZeroDivisionError as error:
        pair.followers.failed(error)  # ends this process if the other rank has not failed alike
        print(error)
    pair.reset()
pair.close()
"""
OTHERS_ARE_SLOW = """
import sys
if "gpu_worker.rank_main" in sys.orig_argv:
    from gpu_worker.sampling import grammars
    grammars.MOST_SLOW_SECONDS = -1
"""
"""As `RAISES`: any grammar takes too much time on ranks but rank 0."""
FOLLOWS = """
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from tests.unit.gpu_worker.behaviour.test_ranks import DIGITS, PROMPT
from tests.unit.gpu_worker.conftest import Driver
pair = load(WorkerSettings())
driver = Driver(pair)
driver.bring(DIGITS)
print(driver.generate(driver.admit(0, PROMPT, grammar=1), 8))
pair.close()
"""
END = 4
DIGITS = Grammar(text=LLMatcher.grammar_from_regex("[0-9]{30}"), end_tokens=[END])


def add_tokenizer(directory: Path) -> None:
    """One token is one character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:97]
    tokenizer = Tokenizer(BPE({each: number for number, each in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    llama().save_pretrained(directory)
    add_tokenizer(directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that mostly guesses wrong: the same one, less its second layer."""
    directory = tmp_path_factory.mktemp("draft")
    llama(num_hidden_layers=1).save_pretrained(directory)
    add_tokenizer(directory)
    return directory


def settings_of(directory: Path, **changes: Any) -> WorkerSettings:
    values = {"device": "cpu", "threads": 2, "max_slots": 4, "block_size": 4, "kv_memory": "1MiB"}
    return WorkerSettings(**{"model": directory, "host_memory": "256KiB", **values, **changes})


@pytest.fixture(scope="module")
def loaded(directory: Path, draft: Path) -> Iterator[SimpleNamespace]:
    """A runner of one rank, and one of two."""
    pair = load(settings_of(directory, draft_model=draft, tensor_parallel=2))
    yield SimpleNamespace(alone=load(settings_of(directory, draft_model=draft)), pair=pair)
    pair.close()


@pytest.fixture
def runners(loaded: SimpleNamespace) -> tuple[Runner, Runner]:
    loaded.alone.reset()
    loaded.pair.reset()
    return loaded.alone, loaded.pair


def test_the_worker_is_as_large_as_one(runners: tuple[Runner, Runner]) -> None:
    alone, pair = runners
    assert pair.limits == alone.limits
    assert pair.host.slots == alone.host.slots > 0
    assert 2 * pair.host.block_bytes == alone.host.block_bytes


def test_tokens_of_mixed_steps(runners: tuple[Runner, Runner]) -> None:
    found = []
    for runner in runners:
        driver = Driver(runner)
        params = [greedy(), sampled(seed=5, top_p=0.9), sampled(seed=6, frequency_penalty=0.5)]
        sequences = [
            driver.admit(slot, PROMPT[slot:], sampling=each, sequence_index=slot)
            for slot, each in enumerate(params)
        ]
        driver.mixed_steps(sequences, len(PROMPT) + 64)
        found.append([sequence.tokens for sequence in sequences])
    assert found[0] == found[1]
    assert len(set(found[0][0])) > 20


def test_drafts_hold_where_they_did(runners: tuple[Runner, Runner]) -> None:
    found = []
    for runner in runners:
        driver = Driver(runner)
        truth = driver.generate(driver.admit(0, PROMPT), 12)
        sequence = driver.admit(1, PROMPT)
        lengths = []
        driver.step((sequence, len(PROMPT)))
        for wrong in (3, 1, 0):
            known = len(sequence.tokens) - len(PROMPT)
            drafts = [*truth[known : known + wrong], (truth[known + wrong] + 1) % 97]
            driver.step((sequence, 1), drafts={1: drafts})
            lengths.append(len(sequence.tokens))
        found.append((sequence.tokens, lengths))
        assert lengths == [len(PROMPT) + 1 + 4, len(PROMPT) + 7, len(PROMPT) + 8]
    assert found[0] == found[1]


def test_a_sequence_that_fails_fails_alone(runners: tuple[Runner, Runner]) -> None:
    """And all ranks leave it out of the steps after."""
    for runner in runners:
        slots = [new_slot(0, [1, POISON], [0]), new_slot(1, PROMPT, [1, 2, 3])]
        result = runner.execute(plan(1, [(0, 0, 2, 1), (1, 0, 11, 1)], new_slots=slots))
        assert [(error.row, error.message) for error in result.errors] == [(0, NOT_FINITE)]
        first = unpack(result.tokens)[1]
        result = runner.execute(plan(2, [(0, 2, 1, 1), (1, 11, 1, 1)]))
        assert [error.row for error in result.errors] == [0]
        runner.reset()
        driver = Driver(runner)
        assert driver.generate(driver.admit(2, PROMPT), 2) == [first, unpack(result.tokens)[1]]


def test_a_grammar_that_rank_0_alone_finds_slow(
    runners: tuple[Runner, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank measures another time, and all leave the sequence out of the same steps."""
    monkeypatch.setattr(grammars, "MOST_SLOW_SECONDS", -1)
    for runner in runners:
        slots = [new_slot(0, PROMPT, [0, 1, 2], grammar=1), new_slot(1, PROMPT, [3, 4, 5])]
        grammar = NewGrammar(number=1, grammar=DIGITS)
        first = plan(1, [(0, 0, 11, 1), (1, 0, 11, 1)], new_slots=slots, new_grammars=[grammar])
        found = []
        for step in (first, plan(2, [(0, 11, 1, 1), (1, 11, 1, 1)])):
            result = runner.execute(step)
            assert [(error.row, error.grammar) for error in result.errors] == [(0, True)]
            assert grammars.TOO_SLOW in result.errors[0].message
            found.append(unpack(result.tokens)[1])
        runner.reset()
        driver = Driver(runner)
        assert driver.generate(driver.admit(2, PROMPT), 2) == found


def test_a_plan_that_cannot_be_applied(runners: tuple[Runner, Runner]) -> None:
    _, pair = runners
    driver = Driver(pair)
    tokens = driver.generate(driver.admit(0, PROMPT), 5)
    with pytest.raises(PlanError, match="came after plan"):
        pair.execute(plan(17))
    pair.reset()
    driver = Driver(pair)
    assert driver.generate(driver.admit(0, PROMPT), 5) == tokens


def test_candidates_forks_copies_and_host_memory(runners: tuple[Runner, Runner]) -> None:
    fork = new_slot(1, [9], [3], prompt_length=11, forked_from=0, forked_tokens=11)
    plans = [
        plan(1, [(0, 0, 11, 1)], new_slots=[new_slot(0, PROMPT, [0, 1, 2], candidates=4)]),
        plan(2, [(0, 11, 1, 1)], given_tokens=([0], [7])),
        plan(3, [(1, 11, 1, 1)], new_slots=[fork], copies=([2], [3])),
        plan(4, swap_out=([0, 1], [2, 0])),
        plan(
            5,
            [(2, 8, 3, 1)],
            new_slots=[new_slot(2, PROMPT, [9, 8, 7])],
            swap_in=([2, 0], [9, 8]),
        ),
    ]
    alone, pair = ([runner.execute(each) for each in plans] for runner in runners)
    assert not any(result.errors for result in alone)
    for ours, theirs in zip(pair, alone, strict=True):
        assert (ours.tokens, ours.candidates.top.tokens) == (theirs.tokens, theirs.candidates.top.tokens)
        logprobs = (unpack(each.candidates.top.logprobs, "<f4") for each in (ours, theirs))
        np.testing.assert_allclose(*logprobs, atol=1e-5)
    assert [len(result.candidates.top.tokens) // 4 for result in alone] == [4, 4, 0, 0, 0]
    best, _, *_ = unpack(alone[0].candidates.top.tokens)
    assert unpack(alone[4].tokens) == [best], "blocks that were away hold what they held"


def test_all_ranks_guess_the_same(runners: tuple[Runner, Runner]) -> None:
    """A draft model is split as the model is."""
    found = []
    for runner in runners:
        driver = Driver(runner)
        sequence = driver.admit(0, PROMPT, sampling=sampled(seed=3))
        driver.step((sequence, len(PROMPT)))
        lengths = []
        for _ in range(12):
            driver.step((sequence, 1), drafts={0: [-1, -1, -1]})
            lengths.append(len(sequence.tokens))
        found.append((sequence.tokens, lengths))
    assert found[0] == found[1]
    assert len(PROMPT) + 1 + 12 < len(found[0][0]) < len(PROMPT) + 1 + 4 * 12, "some hold, some do not"


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
def test_embeddings(runners: tuple[Runner, Runner], pooling: Pooling) -> None:
    tokens = array("i", PROMPT)
    request = Request("r", tokens, sampling=greedy(), pooling=pooling)
    alone, pair = (ClosedLoop(runner).embed(request)[0] for runner in runners)
    torch.testing.assert_close(pair, alone, atol=1e-5, rtol=1e-4)


def test_log_probabilities_of_prompts(runners: tuple[Runner, Runner]) -> None:
    """The head is split: every rank computes its part of it for each piece of a prompt."""
    sampling = greedy(prompt_logprobs=4)
    request = Request("r", array("i", PROMPT), max_tokens=1, sampling=sampling, scores_prompt=True)
    found = []
    for runner in runners:
        loop = ClosedLoop(runner)
        group = loop.ask(request)
        while group.unfinished:
            loop.step()
        found.append(loop.scored[group])
    (ours,), (theirs,) = found
    assert (ours.ranks, ours.top_tokens) == (theirs.ranks, theirs.top_tokens)
    assert len(unpack(ours.ranks)) == len(PROMPT) - 1
    for name in ("logprobs", "top_logprobs"):
        pair = (unpack(getattr(each, name), "<f4") for each in (ours, theirs))
        np.testing.assert_allclose(*pair, atol=1e-5)


def test_what_cannot_be_split_starts_nobody(directory: Path, tmp_path: Path) -> None:
    running = psutil.Process().children()
    with pytest.raises(ModelError, match="QUIRE_TENSOR_PARALLEL=3 does not divide 4 attention heads"):
        load(settings_of(directory, tensor_parallel=3))
    config = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ModelError, match="=2: MambaForCausalLM of transformers cannot be split"):
        load(settings_of(tmp_path, tensor_parallel=2))
    assert psutil.Process().children() == running


def test_every_rank_has_cores_of_its_own() -> None:
    """If their threads take all there are."""
    cores = sorted(os.sched_getaffinity(0))
    seen = []
    for rank in range(len(cores)):
        with own_cores(rank, len(cores), 1):
            seen += library.cores(1)
    assert sorted(seen) == cores
    with own_cores(0, len(cores) + 1, 1):
        assert sorted(os.sched_getaffinity(0)) == cores
    assert sorted(os.sched_getaffinity(0)) == cores


def test_gpus_that_are_not_there(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(CapacityError, match="QUIRE_TENSOR_PARALLEL=2: GPUs that PyTorch finds here: 1"):
        load(settings_of(directory, tensor_parallel=2, device="cuda"))


def test_what_ranks_find(directory: Path) -> None:
    """What all find is said once, by rank 0; what one alone finds ends the worker."""
    settings = {"QUIRE_MODEL": str(directory), "QUIRE_TENSOR_PARALLEL": "2", "QUIRE_DEVICE": "cpu"}
    command = (sys.executable, "-c", DIES)
    ended = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=250)
    refused, told = ended.stdout.splitlines()
    assert refused.startswith("KV memory of 0 MiB")
    assert told == "a rank may fail"
    assert "KV memory" not in ended.stderr
    assert ended.stderr.splitlines()[-1].endswith("rank 1 ended with status 1, and the worker with it")
    assert ended.returncode == 1


def lines_of(script: str, at_start: str, directory: Path, tmp_path: Path) -> list[str]:
    """What `script` prints about a worker of two ranks, each of which runs `at_start` when it starts."""
    (tmp_path / "sitecustomize.py").write_text(at_start)
    settings = settings_of(directory, tensor_parallel=2).model_dump(mode="json", exclude_none=True)
    changes = {f"QUIRE_{name.upper()}": str(value) for name, value in settings.items()}
    found = subprocess.run(
        (sys.executable, "-c", script),
        env=os.environ | changes | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return found.stdout.splitlines()


def test_a_step_that_raises_on_all_ranks_ends_only_its_call(directory: Path, tmp_path: Path) -> None:
    first, error, second = lines_of(GOES_ON, RAISES, directory, tmp_path)
    assert error == "of all ranks"
    assert first == second
    assert len(set(json.loads(first))) > 3


def test_a_grammar_that_rank_0_does_not_find_slow_goes_on(directory: Path, tmp_path: Path) -> None:
    (tokens,) = lines_of(FOLLOWS, OTHERS_ARE_SLOW, directory, tmp_path)
    assert len(json.loads(tokens)) == 8
