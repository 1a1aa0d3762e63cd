"""LoRA adapters: logits are those of transformers with the adapter in its weights, in mixed batches."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import Int4Kernels, QuantizedKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import QuantizedReference
from ops.model_directory.gguf.directory import as_directory
from tests.support.adapters import write_adapter
from tests.support.logits import watch_logits
from tests.support.ranks import Together, same
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, PROMPT, random_model
from tests.unit.gpu_worker.behaviour.test_gguf import MODELS as GGUF
from tests.unit.gpu_worker.behaviour.test_gguf import written
from tests.unit.gpu_worker.conftest import Driver, back_end, llama, make_runner, makers

BEST = build.supported()[0]
LENGTH = len(PROMPT) + 9
SIZES = {"num_blocks": 96, "max_model_len": 96, "max_step_tokens": 256}
SPLIT = {
    **dict.fromkeys(("Llama", "Phi-3", "GPT-2", "GPT-NeoX", "Mixtral", "Qwen2 MoE", "BLOOM", "Falcon"), 2),
    **dict.fromkeys(("DeepSeek V3, YaRN", "Qwen3.5", "LFM2", "Kimi Linear", "Nemotron H", "Falcon H1"), 2),
    "Qwen3": 4,
}


def made(directory: Path, model: Any) -> SimpleNamespace:
    """The model as a directory, and two adapters of it; `models`: what each computes, by its name."""
    model.save_pretrained(directory / "model")
    models = {"": model}
    for seed, (name, rank) in enumerate((("a", 4), ("b", 3))):
        models[name] = write_adapter(directory / name, model, seed, rank)
    adapters = {name: directory / name for name in models if name}
    return SimpleNamespace(directory=directory / "model", adapters=adapters, models=models)


@pytest.fixture
def small(tmp_path: Path) -> SimpleNamespace:
    """A Llama with two adapters."""
    return made(tmp_path, llama())


def logits_of(seen: Any, sequence: Any) -> torch.Tensor:
    return torch.stack([seen[sequence.slot, position] for position in range(sequence.computed)])


def expected_of(model: Any, sequence: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([sequence.tokens[: sequence.computed]])).logits[0]
    return found


def check_mixed(make: Any, found: SimpleNamespace, runner: Any) -> None:
    """Both adapters and the model alone in one batch, in chunks beside decodes."""
    seen = watch_logits(runner)
    driver = make.Driver(runner)
    names = ("a", "", "b")
    sequences = [driver.admit(slot, PROMPT, adapter=name) for slot, name in enumerate(names)]
    driver.mixed_steps(sequences, LENGTH)
    prompts = []
    for sequence, name in zip(sequences, names, strict=True):
        logits = logits_of(seen, sequence)
        torch.testing.assert_close(logits, expected_of(found.models[name], sequence), atol=3e-4, rtol=3e-4)
        prompts.append(logits[: len(PROMPT)])
    for other in (prompts[0], prompts[2]):
        assert (other - prompts[1]).norm() > 0.01 * prompts[1].norm(), "an adapter that changes little"


@pytest.mark.parametrize("name", MODELS | ALIKE)
def test_every_family(tmp_path: Path, name: str) -> None:
    """With adapters on all linear layers but those of experts."""
    found, make = made(tmp_path, random_model(*(MODELS | ALIKE)[name])), makers(ReferenceKernels())
    check_mixed(make, found, make.runner(found.directory, adapters=found.adapters, **SIZES))


@pytest.mark.parametrize("name", MODELS)
def test_every_family_in_cpp(tmp_path: Path, name: str) -> None:
    found, make = made(tmp_path, random_model(*MODELS[name])), makers(back_end(BEST))
    check_mixed(make, found, make.runner(found.directory, adapters=found.adapters, **SIZES))


def test_every_back_end(make: Any, small: SimpleNamespace) -> None:
    check_mixed(make, small, make.runner(small.directory, adapters=small.adapters, **SIZES))


@pytest.mark.parametrize("bare_adapter", [False, True], ids=["whole adapter", "bare adapter"])
@pytest.mark.parametrize("bare_model", [False, True], ids=["whole model", "bare model"])
@pytest.mark.parametrize(
    ("name", "base"), [("GPT-2", "transformer."), ("BLOOM", "transformer."), ("", "model.")]
)
def test_names_without_their_base(
    tmp_path: Path, name: str, base: str, bare_model: bool, bare_adapter: bool
) -> None:
    """A checkpoint, and an adapter, of AutoModel instead of AutoModelForCausalLM."""
    model = random_model(*MODELS[name]) if name else llama(tie_word_embeddings=True)
    found, make = made(tmp_path, model), makers(ReferenceKernels())
    if bare_model:
        _rename(found.directory / "model.safetensors", base, "")
    if bare_adapter:
        for directory in found.adapters.values():
            _rename(directory / "adapter_model.safetensors", f"base_model.model.{base}", "base_model.model.")
    check_mixed(make, found, make.runner(found.directory, adapters=found.adapters, **SIZES))


def _rename(path: Path, prefix: str, other: str) -> None:
    tensors = load_file(path)
    assert all(name.startswith(prefix) for name in tensors)
    save_file({other + name.removeprefix(prefix): tensor.clone() for name, tensor in tensors.items()}, path)


@pytest.mark.parametrize("name", SPLIT)
def test_ranks(tmp_path: Path, name: str) -> None:
    """Each rank has its part of the factors."""
    found, kernels = made(tmp_path, random_model(*(MODELS | ALIKE)[name])), ReferenceKernels()
    ranks = Together(
        SPLIT[name],
        lambda ranks: make_runner(found.directory, kernels, ranks=ranks, adapters=found.adapters, **SIZES),
    )
    seen = [watch_logits(runner) for runner in ranks.runners]
    driver = Driver(ranks)
    names = ("a", "", "b")
    sequences = [driver.admit(slot, PROMPT, adapter=one) for slot, one in enumerate(names)]
    driver.mixed_steps(sequences, LENGTH)
    for sequence, one in zip(sequences, names, strict=True):
        logits = [logits_of(each, sequence) for each in seen]
        assert same(logits)
        torch.testing.assert_close(logits[0], expected_of(found.models[one], sequence), atol=1e-4, rtol=1e-4)


def test_a_row_does_not_depend_on_adapters_beside_it(small: SimpleNamespace) -> None:
    """Bit by bit: a resumed answer of the model alone has the tokens that it would have had."""
    make = makers(back_end(BEST))
    seen = []
    for adapters, names in (({}, ("",)), (small.adapters, ("",)), (small.adapters, ("", "a", "b"))):
        runner = make.runner(small.directory, adapters=adapters, **SIZES)
        watched = watch_logits(runner)
        driver = make.Driver(runner)
        sequences = [driver.admit(slot, PROMPT, adapter=one) for slot, one in enumerate(names)]
        driver.mixed_steps(sequences, LENGTH)
        seen.append(logits_of(watched, sequences[0]))
        alone = logits_of(watched, sequences[-1])
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    runner = make.runner(small.directory, adapters=small.adapters, **SIZES)
    watched = watch_logits(runner)
    driver = make.Driver(runner)
    driver.generate(sequence := driver.admit(0, PROMPT, adapter="b"), LENGTH - len(PROMPT))
    assert torch.equal(logits_of(watched, sequence)[: len(alone)], alone[: sequence.computed])


def test_only_steps_without_adapters_are_recorded(small: SimpleNamespace) -> None:
    make = makers(back_end(BEST))
    runner = make.runner(small.directory, adapters=small.adapters, **SIZES)
    found = []
    recorded = runner.forward.recorded
    find = recorded.find
    recorded.find = lambda rows: found.append(find(rows)) or found[-1]
    driver = make.Driver(runner)
    driver.generate(plain := driver.admit(0, PROMPT), 12)
    assert found[-1] is not None, "decodes of the model alone are repeated"
    count = len(found)
    adapted = driver.admit(1, PROMPT, adapter="a")
    driver.step((adapted, len(PROMPT)), (plain, 1))
    driver.generate(adapted, 3)
    assert len(found) == count
    driver.step((plain, 1))
    assert len(found) == count + 1


@pytest.mark.parametrize(
    ("kernels", "reference", "near"),
    [
        (QuantizedKernels(library.load(BEST, 1)), QuantizedReference(torch.int8, rotates=True), 0.03),
        (Int4Kernels(library.load(BEST, 1)), Int4Reference(), 0.05),
    ],
    ids=["int8", "int4"],
)
def test_quantized_weights(small: SimpleNamespace, kernels: Kernels, reference: Kernels, near: float) -> None:
    """Factors stay plain: what they add is as exact as with plain weights."""
    found = []
    for back in (kernels, reference, ReferenceKernels()):
        runner = make_runner(small.directory, back, adapters=small.adapters, **SIZES)
        seen = watch_logits(runner)
        driver = Driver(runner)
        for slot, name in enumerate(("a", "", "b")):
            driver.step((driver.admit(slot, PROMPT, adapter=name), len(PROMPT)))
        found.append([torch.stack([seen[slot, at] for at in range(len(PROMPT))]) for slot in range(3)])
    ours, theirs, plain = found
    for slot in range(3):
        assert (ours[slot] - theirs[slot]).norm() < near * theirs[slot].norm()
    # What the adapter changes is more than what quantizing does to it.
    changed = plain[0] - plain[1]
    assert ((ours[0] - ours[1]) - changed).norm() < 0.7 * changed.norm()


def test_bfloat16(make: Any, kernels: Kernels, small: SimpleNamespace) -> None:
    """As close to float32 as transformers is in bfloat16."""
    try:
        runner = make.runner(small.directory, dtype=torch.bfloat16, adapters=small.adapters, **SIZES)
        seen = watch_logits(runner)
        driver = make.Driver(runner)
        sequences = [driver.admit(slot, PROMPT, adapter=name) for slot, name in enumerate(("a", "b", "a"))]
        driver.step(*((each, len(PROMPT)) for each in sequences))
    except RuntimeError as error:
        pytest.skip(str(error).partition("\n")[0])
    exact = expected_of(small.models["a"], sequences[0])
    narrow = small.models["a"].bfloat16()
    theirs = expected_of(narrow, sequences[0]).float()
    for sequence in sequences[::2]:
        assert (logits_of(seen, sequence) - exact).norm() < 1.5 * (theirs - exact).norm()


def test_forks_and_drafts(make: Any, small: SimpleNamespace) -> None:
    """A fork has the adapter of its parent; drafts are verified by the adapted model."""
    runner = make.runner(small.directory, adapters=small.adapters)
    expected = make.expected(small.models["b"], PROMPT, 6)
    fields = {"new_slots": [make.slot(0, PROMPT, range(5), adapter="b")]}
    runner.execute(make.plan(1, [(0, 0, len(PROMPT), 1)], **fields))
    child = make.slot(
        *(1, PROMPT[-1:], [9]),
        prompt_length=len(PROMPT),
        forked_from=0,
        forked_tokens=len(PROMPT) - 1,
        adapter="b",
    )
    rows = [(1, len(PROMPT) - 1, 3, 3)]
    drafts = [expected[0], (expected[1] + 1) % 97]
    more = {"copies": ([4], [9]), "table_appends": ([1], [10]), "draft_tokens": drafts}
    result = runner.execute(make.plan(2, rows, new_slots=[child], **more))
    assert not result.errors
    assert make.unpack(result.tokens) == [*expected[:2], -1]


def test_an_adapter_that_is_not_there(make: Any, small: SimpleNamespace) -> None:
    runner = make.runner(small.directory, adapters=small.adapters)
    new = [make.slot(0, PROMPT, range(5), adapter="c"), make.slot(1, PROMPT, range(5, 10), adapter="a")]
    rows = [(slot, 0, len(PROMPT), 1) for slot in range(2)]
    result = runner.execute(make.plan(1, rows, new_slots=new))
    assert [(error.row, error.message) for error in result.errors] == [(0, "there is no adapter 'c'")]
    other = make.slot(2, PROMPT[-1:], [20], prompt_length=len(PROMPT), forked_from=1, forked_tokens=18)
    result = runner.execute(make.plan(2, [(2, 18, 1, 1)], new_slots=[other]))
    assert result.errors[0].message == "forked from a sequence of another adapter"


def test_an_adapter_of_the_head(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")
    head = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(32, 97, bias=False)})
    write_adapter(tmp_path / "a", head, every=True)
    with pytest.raises(ModelError, match="adapters of the head and of embeddings are not supported"):
        make_runner(tmp_path / "model", ReferenceKernels(), adapters={"a": tmp_path / "a"})


def test_an_adapter_of_experts(tmp_path: Path) -> None:
    """As older versions of PEFT write it, with the names of older versions of transformers."""
    random_model(*MODELS["Mixtral"]).save_pretrained(tmp_path / "model")
    expert = "base_model.model.model.layers.1.block_sparse_moe.experts.0.w1"
    factors = {f"{expert}.lora_A.weight": torch.ones(2, 32), f"{expert}.lora_B.weight": torch.ones(48, 2)}
    (tmp_path / "a").mkdir()
    save_file(factors, tmp_path / "a" / "adapter_model.safetensors")
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    with pytest.raises(
        ModelError, match=r"experts.0.w1.lora_A.weight: adapters of experts are not supported"
    ):
        make_runner(tmp_path / "model", ReferenceKernels(), adapters={"a": tmp_path / "a"})


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")
    write_adapter(tmp_path / "a", llama(intermediate_size=64), fits=lambda name: "mlp" in name)
    with pytest.raises(ModelError, match=r"mlp.down_proj.lora_A.weight: it is for a weight \[32, 64\], "):
        make_runner(tmp_path / "model", ReferenceKernels(), adapters={"a": tmp_path / "a"})


@pytest.mark.parametrize("name", ["Qwen3.5", "Nemotron H"])
def test_drafts_of_recurrent_models(tmp_path: Path, name: str) -> None:
    """The states of rows with drafts are written when it is known which hold."""
    found, make = made(tmp_path, random_model(*MODELS[name])), makers(back_end(BEST))
    runner = make.runner(found.directory, adapters=found.adapters, **SIZES)
    driver = make.Driver(runner)
    sequences = [driver.admit(slot, PROMPT, adapter=one) for slot, one in enumerate(("a", ""))]
    driver.step(*((each, len(PROMPT)) for each in sequences))
    for number in range(6):
        drafts = {}
        for sequence, one in zip(sequences, ("a", ""), strict=True):
            known = list(sequence.tokens)
            for _ in range(2):
                with torch.inference_mode():
                    known.append(int(found.models[one](torch.tensor([known])).logits[0, -1].argmax()))
            known[-1] = (known[-1] + number % 2) % 97  # every other time the second one does not hold
            drafts[sequence.slot] = known[-2:]
        driver.step(*((each, 1) for each in sequences), drafts=drafts)
    for sequence, one in zip(sequences, ("a", ""), strict=True):
        expected = expected_of(found.models[one], sequence)[len(PROMPT) - 1 :].argmax(-1).tolist()
        answer = sequence.tokens[len(PROMPT) :]
        assert len(answer) > 12
        assert answer == expected[: len(answer)]


def test_models_that_are_served_without_adapters(tmp_path: Path) -> None:
    adapter = tmp_path / "a"
    write_adapter(adapter, llama())
    for architecture in ("NemotronForCausalLM", "BertModel"):
        directory = tmp_path / architecture
        directory.mkdir()
        kind = architecture.partition("F")[0].lower().removesuffix("model")
        (directory / "config.json").write_text(
            json.dumps({"architectures": [architecture], "model_type": kind})
        )
        with pytest.raises(ModelError, match="without LoRA adapters"):
            make_runner(directory, ReferenceKernels(), adapters={"a": adapter})


@pytest.mark.parametrize("name", GGUF)
def test_gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rows of factors follow those of the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, meant = written(tmp_path, name, lambda own: None)
    model = AutoModelForCausalLM.from_pretrained(meant, dtype="float32", attn_implementation="eager").eval()
    merged = write_adapter(tmp_path / "a", model, fits=lambda name: "shared_mlp" not in name)

    def runner() -> Any:
        return make_runner(as_directory(file), ReferenceKernels(), adapters={"a": tmp_path / "a"})

    if name.startswith(("gemma4", "qwen35")):
        with pytest.raises(ModelError, match=r"without LoRA adapters|not served beside GGUF files"):
            runner()
        return
    seen = watch_logits(found := runner())
    driver = Driver(found)
    driver.step((sequence := driver.admit(0, PROMPT, adapter="a"), len(PROMPT)))
    torch.testing.assert_close(logits_of(seen, sequence), expected_of(merged, sequence), atol=3e-4, rtol=3e-4)
