"""Models with recurrent layers under the scheduler: each request gets what it gets alone, whatever shares its
blocks, and files and configurations as they are published."""

import json
from array import array
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.config import read_config
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.load import Beside, check_split, load_model
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.draft_model import load_draft
from gpu_worker.step.runner import Runner
from ops.kv_memory import kv_shape
from ops.kv_memory import read_config as plan_config
from proto.sampling import greedy
from scheduler_svc.core.capabilities import partial_blocks
from scheduler_svc.core.drafters import Drafter
from scheduler_svc.core.request import BeamSearch, Request
from scheduler_svc.core.sequence import Sequence, State
from tests.support.closed_loop import ClosedLoop
from tests.support.predictors import add_predictor
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, PROMPT, random_model
from tests.unit.gpu_worker.conftest import CPU, Driver, make_runner, new_slot, plan, sampled

NAMES = ["Qwen3.5", "LFM2", "OLMo Hybrid", "Kimi Linear", "Ling 3", "Nemotron H", "Falcon H1", "Mamba-2"]
BLOCK_SIZE = 8


@pytest.fixture(scope="module", params=NAMES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recurrent")
    random_model(*(MODELS | ALIKE)[request.param]).save_pretrained(path)
    return path


def native() -> Kernels:
    return CpuKernels(library.load(build.supported()[0], 1))


def loop(directory: Path, num_blocks: int = 64, **changes: int) -> ClosedLoop:
    sizes = {"num_blocks": num_blocks, "block_size": BLOCK_SIZE, "max_model_len": 96, "max_step_tokens": 24}
    return ClosedLoop(make_runner(directory, native(), **sizes | changes))


def answers(loop: ClosedLoop, *requests: Request) -> list[list[list[int]]]:
    """The output of each sequence of each request; all requests run side by side."""
    groups = [loop.ask(request) for request in requests]
    while any(group.unfinished for group in groups):
        loop.step()
    return [
        [sequence.tokens[len(group.request.prompt) :].tolist() for sequence in group.sequences]
        for group in groups
    ]


def ask(prompt: list[int], name: str = "r", **changes: Any) -> Request:
    values: dict[str, Any] = {"sampling": sampled(seed=7), "max_tokens": 24}
    return Request(name, array("i", prompt), **values | changes)


def test_samples_fork_where_the_last_token_of_their_prompt_is_not_computed_yet(directory: Path) -> None:
    """In the middle of a block, and where one ends."""
    for length in (1, 2, BLOCK_SIZE, BLOCK_SIZE + 1, 19):
        together, alone = loop(directory), loop(directory)
        request = ask(PROMPT[:length], n=3)
        (found,) = answers(together, request)
        assert len({tuple(each) for each in found}) > 1
        for index in range(3):  # each as the only one that has not ended
            resumed = [each for each in range(3) if each != index]
            one = alone.ask(request)
            for other in resumed:
                alone.fleet.end_sequence(one, other)
            while one.unfinished:
                alone.step()
            assert one.sequences[index].tokens[length:].tolist() == found[index]


def test_in_a_pool_that_is_too_small_for_all_of_them(directory: Path) -> None:
    """Sequences are preempted, begin again from cached blocks, and share these."""
    prompts = [PROMPT[: 17 + number % 3] + [number] * (number % 2) for number in range(6)]
    requests = [
        ask(prompt, str(number), sampling=sampled(seed=number)) for number, prompt in enumerate(prompts)
    ]
    expected = [answers(loop(directory), request)[0] for request in requests]
    small, states = loop(directory, num_blocks=11, max_slots=6), list[State]()
    groups = [small.ask(request) for request in requests]
    while any(group.unfinished for group in groups):
        small.step()
        states += [group.sequences[0].state for group in groups]
    outputs = [group.sequences[0].tokens[len(group.request.prompt) :].tolist() for group in groups]
    assert [[output] for output in outputs] == expected
    assert State.PREEMPTED in states


def test_a_cached_prefix_brings_its_state(directory: Path) -> None:
    one, prompt = loop(directory), [*PROMPT, *PROMPT]
    first = one.ask(ask(prompt))
    while first.unfinished:
        one.step()
    second = one.ask(ask(prompt))
    while second.unfinished:
        one.step()
    assert second.cached_tokens == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert second.sequences[0].tokens == first.sequences[0].tokens


@pytest.mark.parametrize("n", [1, 2])
def test_a_chat_goes_on_in_the_middle_of_a_block(
    directory: Path, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn begins where the answer before ended, or behind the question if that was too long."""
    monkeypatch.setattr(partial_blocks, "STEPS", 0)  # a tiny model's tokens are worth no step
    one, stops = loop(directory, block_size=64), frozenset(range(0, 200, 4))
    asked, ends = [*PROMPT[:9], 4, 11, 13], list[tuple[int, int]]()
    for turn in range(5):
        request = ask(asked, stop_token_ids=stops, sampling=sampled(seed=turn), max_tokens=6, n=n)
        group = one.ask(request)
        while group.unfinished or one.scheduler.in_flight:
            one.step()
        found = [sequence.tokens[len(asked) :].tolist() for sequence in group.sequences]
        assert [found] == answers(loop(directory, block_size=64), request)
        ends.append((group.cached_tokens or 0, len(asked) + len(found[0]) if found[0][-1] in stops else 10))
        asked = [*asked, *found[0], 5, 7]
    assert ends[0][0] == 0
    assert any(end > 10 for _, end in ends)
    assert all(cached >= min(end, 63) - 1 for (_, end), (cached, _) in pairwise(ends))


def test_beams(directory: Path) -> None:
    """Over the reference, with blocks of one token, and over C++: the same answers."""
    request = ask(PROMPT, sampling=greedy(), n=2, beams=BeamSearch(width=3, length_penalty=1.0), max_tokens=9)
    sizes = {"num_blocks": 200, "block_size": 1, "max_model_len": 96, "max_step_tokens": 24}
    plain = ClosedLoop(make_runner(directory, ReferenceKernels(), **sizes))
    found = []
    for each in (loop(directory), plain):
        group, tokens = each.ask(request), dict[int, list[int]]()
        while group.unfinished:
            for gain in each.step():
                tokens.setdefault(gain.sequence_index, []).append(gain.token)
        found.append(tokens)
    assert found[0] == found[1]
    assert len(found[0]) == 2


def test_the_worker_fails_a_row_whose_state_is_not_there(directory: Path) -> None:
    runner: Runner = make_runner(directory, native(), block_size=4)
    new = [new_slot(0, PROMPT, range(6)), new_slot(1, PROMPT[:9], range(6, 10))]
    assert not runner.execute(plan(1, [(0, 0, 6, 0), (1, 0, 6, 0)], new_slots=new)).errors
    fork = new_slot(2, PROMPT[5:], [10, 11, 12, 13], forked_from=0, forked_tokens=5)
    result = runner.execute(plan(2, [(0, 5, 3, 0), (1, 4, 2, 0), (2, 5, 3, 0)], new_slots=[fork]))
    assert {error.row: error.message for error in result.errors} == {
        0: "position 5 of a sequence: its state is that after 6 tokens",
        2: "forked after 5 tokens of a sequence: its state is that after 6 tokens",
    }


@pytest.mark.parametrize(("name", "size"), [("Qwen3.5", 256), ("LFM2", 16)])
def test_the_usual_block_has_as_many_tokens_as_its_state_is_worth(
    name: str, size: int, tmp_path: Path
) -> None:
    random_model(*MODELS[name]).save_pretrained(tmp_path)
    settings = {"model": tmp_path, "model_name": "m", "device": "cpu", "threads": 1, "kv_memory": 16 << 20}
    for changes, expected in (
        ({}, min(size, 128)),
        ({"max_model_len": 40}, min(size, 64)),
        ({"block_size": 4}, 4),
    ):
        runner = load(WorkerSettings(**settings | changes))
        assert runner.limits.block_size == expected
        assert runner.limits.recurrent


def test_no_recurrent_model_drafts(directory: Path) -> None:
    model = load_model(directory, CPU, native())
    with pytest.raises(ModelError, match="a recurrent model cannot take back what it guesses"):
        load_draft(directory, directory, model, native(), CPU, 96)


@pytest.mark.parametrize(
    ("kernels", "right"), [(native, 0.0), (native, 0.6), (ReferenceKernels, 0.6), (ReferenceKernels, 1.0)]
)
def test_drafts_that_do_not_hold_leave_no_trace(
    directory: Path, kernels: Callable[[], Kernels], right: float
) -> None:
    """In rows beside decodes and chunks of prompts, across blocks."""
    make, chance, prompts = (
        partial(make_runner, directory, kernels()),
        Random(1),
        [PROMPT, PROMPT[1:], PROMPT],
    )
    truths = []
    for slot, prompt in enumerate(prompts):
        alone = Driver(make())
        truths.append(alone.generate(alone.admit(slot, prompt, sampling=sampled(seed=slot)), 16))
    driver = Driver(make(block_size=3), seed=1)
    rows = [driver.admit(slot, prompt, sampling=sampled(seed=slot)) for slot, prompt in enumerate(prompts)]
    while any(len(row.tokens) < len(prompt) + 12 for row, prompt in zip(rows, prompts, strict=True)):
        planned, drafts = [], dict[int, list[int]]()
        for row, prompt, truth in zip(chance.sample(rows, 2), prompts, truths, strict=False):
            prompt, truth = prompts[row.slot], truths[row.slot]
            left, gained = len(row.tokens) - row.computed, len(row.tokens) - len(prompt)
            planned.append((row, min(left, 7)))
            if left <= 7:
                following = truth[gained : gained + chance.randrange(4)]
                drafts[row.slot] = [
                    each if chance.random() < right else (each + 1) % 97 for each in following
                ]
        driver.step(*planned, drafts=drafts)
    for row, prompt, truth in zip(rows, prompts, truths, strict=True):
        output = row.tokens[len(prompt) :]
        assert output[:16] == truth[: len(output)]


def test_an_answer_is_the_same_with_drafts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats side by side in a pool that is too small for all. Three of four drafts hold."""
    monkeypatch.setattr(partial_blocks, "STEPS", 0)
    chance, outputs, held, hits = Random(1), dict[str, list[int]](), 0, 0

    def guess(_: Drafter, sequence: Sequence, count: int) -> list[int]:
        truth = outputs[sequence.group.request.request_id][len(sequence.tokens) :]
        return [(each + (chance.random() < 0.25)) % 97 for each in truth[:count]]

    monkeypatch.setattr(Drafter, "guess", guess)
    for speculation in ("off", "ngram"):
        runner = make_runner(directory, native(), num_blocks=14, block_size=16, max_model_len=96, max_slots=6)
        one, asked = ClosedLoop(runner, speculation), [[*PROMPT[:each], 4, 11, 13] * 2 for each in range(4)]
        for turn in range(3):
            requests = [
                ask(prompt, f"{turn} {number}", stop_token_ids=frozenset({4, 9}), max_tokens=20)
                for number, prompt in enumerate(asked)
            ]
            groups = [one.ask(request) for request in requests]
            while any(group.unfinished for group in groups) or one.scheduler.in_flight:
                one.step()
            for request, group in zip(requests, groups, strict=True):
                found = group.sequences[0].tokens.tolist()
                assert outputs.setdefault(request.request_id, found) == found
            asked = [[*group.sequences[0].tokens, 5, 7][-70:] for group in groups]
            held += sum(group.drafts_held for group in groups)
            hits += sum(group.cached_tokens or 0 for group in groups)
    assert held > 20
    assert hits


def test_a_draft_model(tmp_path: Path) -> None:
    """Of attention alone, for a recurrent model."""
    target, draft = tmp_path / "target", tmp_path / "draft"
    random_model(*MODELS["Qwen3.5"]).save_pretrained(target)
    random_model(*MODELS["Llama"]).save_pretrained(draft)
    common = {"model": target, "model_name": "m", "device": "cpu", "threads": 1, "kv_memory": 16 << 20}
    outputs, drafts = [], 0
    for changes, speculation in (({}, "off"), ({"draft_model": draft}, "draft")):
        one = ClosedLoop(load(WorkerSettings(**common | changes)), speculation)
        groups = [one.ask(ask(PROMPT[:each], str(each), max_tokens=30)) for each in (1, 9)]
        while any(group.unfinished for group in groups):
            one.step()
        outputs.append([group.sequences[0].tokens for group in groups])
        drafts += sum(group.drafts for group in groups)
    assert outputs[0] == outputs[1]
    assert drafts


@pytest.mark.parametrize("name", ["Qwen3.5", "Qwen3.5 MoE"])
def test_a_published_file_has_other_parts_and_stacked_experts(tmp_path: Path, name: str) -> None:
    """The language model lies within a model that sees; there is a multi-token predictor."""
    architecture, changes = (MODELS | ALIKE)[name]
    own, whole = tmp_path / "own", tmp_path / "whole"
    model = random_model(architecture, changes)
    model.save_pretrained(own)
    add_predictor(own, model)
    text = json.loads((own / "config.json").read_text())
    del text["architectures"], text["layer_types"]
    text |= {"full_attention_interval": 2, "tie_word_embeddings": False}
    config = {
        "architectures": [architecture.replace("ForCausalLM", "ForConditionalGeneration")],
        "text_config": text,
        "vision_config": {},
    }
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps(config))
    tensors = {
        name.replace("model.", "model.language_model.", 1): each
        for name, each in load_file(own / "model.safetensors").items()
    }
    for layer in range(3):
        experts = f"model.language_model.layers.{layer}.mlp.experts."
        for stacked, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            each = [
                torch.cat([tensors.pop(f"{experts}{number}.{part}.weight") for part in parts])
                for number in range(5)
                if f"{experts}{number}.{parts[0]}.weight" in tensors
            ]
            if each:
                tensors[experts + stacked] = torch.stack(each)
    beside = {"model.visual.patch_embed.proj.weight": torch.ones(2, 2)}
    save_file(tensors | beside, whole / "model.safetensors")
    first, second = (Driver(make_runner(each, ReferenceKernels())) for each in (own, whole))
    assert first.generate(first.admit(0, PROMPT), 9) == second.generate(second.admit(0, PROMPT), 9)
    drafting = load_model(whole, CPU, ReferenceKernels(), beside=Beside(predictor=whole))
    assert isinstance(drafting, Decoder)
    assert drafting.predictor is not None
    assert bool(drafting.predictor.config.experts) == ("MoE" in name)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Qwen3.5", {"layer_types": ["linear_attention"]}, "layer_types: a list of 3 is needed"),
        (
            "Qwen3.5",
            {"layer_types": ["sliding_attention"] * 3},
            "layer_types: 'sliding_attention' is not supported",
        ),
        (
            "Qwen3.5",
            {"linear_num_value_heads": 3},
            "linear_num_value_heads: 3 are no multiple of 2 key heads",
        ),
        ("LFM2", {"layer_types": None, "full_attn_idxs": 5}, "full_attn_idxs: a list is needed, not 5"),
        ("Nemotron 3", {"layers_block_type": ["sparse"] * 5}, "layer_types: 'sparse' is not supported"),
        ("Nemotron H", {"layers_block_type": None}, "num_hidden_layers: a positive integer is needed"),
        (
            "Nemotron H",
            {"layers_block_type": None, "hybrid_override_pattern": "M?"},
            "layer_types: '[?]' is not supported",
        ),
        (
            "Nemotron H",
            {"mamba_hidden_act": "gelu"},
            "mamba_hidden_act: the convolution's activation is silu",
        ),
        (
            "Granite 4 H",
            {"hidden_act": "gelu"},
            "hidden_act: the convolution's activation is silu, not 'gelu'",
        ),
        ("Granite 4 H", {"mamba_n_groups": 3}, "mamba_n_groups: 3 groups do not divide 4 heads"),
        ("Granite 4 H", {"time_step_limit": [1.0]}, "time_step_limit: two numbers are needed"),
        ("Granite 4 H", {"time_step_limit": [2, 1]}, "time_step_limit: two numbers are needed"),
        (
            "Granite 4 H",
            {"mamba_d_head": "auto", "mamba_n_heads": 7},
            "mamba_n_heads: 7 heads do not divide 64 dimensions",
        ),
        ("Falcon H1", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers: more than 4 numbers are needed"),
        ("LFM2", {"conv_L_cache": 0}, "conv_L_cache: a positive integer is needed"),
    ],
)
def test_configurations_that_make_no_sense(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    random_model(*MODELS[name]).config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text()) | {"architectures": [MODELS[name][0]]}
    path.write_text(json.dumps(values | changes))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "keys"),
    [
        ("Nemotron H", {"mlp_bias": True}, "mlp_bias"),
        ("Falcon H1", {"mamba_proj_bias": True, "projectors_bias": True}, "mamba_proj_bias, projectors_bias"),
    ],
)
def test_what_else_transformers_has_is_refused_by_the_keys(
    tmp_path: Path, name: str, changes: dict[str, Any], keys: str
) -> None:
    architecture, values = MODELS[name]
    random_model(architecture, values | changes).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"unlike other models of its family in {keys}"):
        load_model(tmp_path, CPU, native())


def test_heads_of_a_group_that_is_not_split(tmp_path: Path) -> None:
    random_model(*MODELS["Granite 4 H"]).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="QUIRE_TENSOR_PARALLEL=2: the recurrent layers cannot be split"):
        check_split(tmp_path, 2)


def test_a_model_without_attention_has_no_keys_of_it(tmp_path: Path) -> None:
    random_model(*ALIKE["Mamba-2"]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    for key in (
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "max_position_embeddings",
    ):
        del values[key]
    path.write_text(json.dumps(values))
    config = load_model(tmp_path, CPU, native()).config
    assert (config.pages, config.max_position) == ((), 2048)
    assert kv_shape(plan_config(tmp_path)).kind == "none"


def test_layers_with_attention_by_their_numbers(tmp_path: Path) -> None:
    values = random_model(*MODELS["LFM2"]).config.to_dict() | {"architectures": ["Lfm2ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(values | {"layer_types": None, "full_attn_idxs": [1]}))
    config = read_config(tmp_path)
    assert config.recurrence is not None
    assert config.recurrence.layers == {0, 2}
