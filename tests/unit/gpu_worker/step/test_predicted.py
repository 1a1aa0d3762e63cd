"""The model's own layer for multi-token prediction guesses what transformers' form of it guesses, and changes
no token."""

from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from gpu_worker.arrays import Int32s
from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.rows import Rows
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.memory.cache import make_caches
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.load import Beside, load_model
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.batch import Batch
from gpu_worker.step.predicted import PredictedTokens
from gpu_worker.step.runner import Runner
from ops.model_directory.settings import SHIPPED_MODEL, SHIPPED_PREDICTOR
from proto.sampling import greedy
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import State
from tests.support.closed_loop import ClosedLoop
from tests.support.predictors import add_predictor, logits_of, predicted
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, PROMPT, random_model
from tests.unit.gpu_worker.conftest import CPU, GPU, TRITON, Driver, back_end, make_limits, sampled

DEEPSEEK = ["DeepSeek V3", "DeepSeek V3.2", "GLM 4 MoE", "GLM 4 MoE Lite", "GLM 5"]
QWEN = ["Qwen3.5", "Qwen3.5 MoE", "Qwen3 Next"]
GUESS = -1
SHIPPED: dict[str, Any] = {
    "model": SHIPPED_MODEL,
    "draft_model": SHIPPED_PREDICTOR,
    "speculation": "mtp",
    "device": "cpu",
    "threads": 1,
    "kv_memory": "32MiB",
}


@pytest.fixture(scope="module", params=DEEPSEEK + QWEN)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    path = tmp_path_factory.mktemp("predictor")
    architecture, changes = (MODELS | ALIKE)[request.param]
    if "layer_types" in changes:  # transformers takes the kind of norms from the last layer
        changes = changes | {"layer_types": ["full_attention", "linear_attention", "full_attention"]}
    model = random_model(architecture, changes)
    model.save_pretrained(path)
    return SimpleNamespace(directory=path, model=model, predictor=add_predictor(path, model))


class Checked(PredictedTokens):
    """Compares the logits of each guess with transformers'."""

    def __init__(self, made: SimpleNamespace, *parts: Any) -> None:
        super().__init__(*parts)
        self._made, self._passes = made, logits_of(self.predictor)
        self.guessed = 0

    def propose(self, batch: Batch, rows: Rows, guesses: Int32s) -> None:
        self._passes.clear()
        super().propose(batch, rows, guesses)
        going = list(range(len(rows.index)))
        found = dict[int, list[Tensor]]()
        for number, logits in enumerate(self._passes):
            going = [row for row in going if guesses[row] > number]
            for row, each in zip(going, logits, strict=True):
                found.setdefault(row, []).append(each)
        for row, each in found.items():
            known, end = int(rows.starts[row] + rows.counts[row] - guesses[row]), int(guesses[row])
            tokens = batch.tables.tokens[int(rows.slots[row]), : known + end].tolist()
            right = predicted(self._made.model, self._made.predictor, tokens[:known], tokens[known:])
            torch.testing.assert_close(torch.stack(each).cpu(), right, atol=3e-3, rtol=3e-3)
            self.guessed += end


class Exact(CpuKernels):
    """Without a head of its own for drafts."""

    rough = None  # type: ignore[assignment]


def native() -> Kernels:
    return Exact(library.load(build.supported()[0], 1))


def drafting(made: SimpleNamespace, kernels: Kernels, **changes: int) -> Runner:
    """A runner that drafts, whose pages and states are full of NaN."""
    device = GPU if isinstance(kernels, TritonKernels) else CPU
    beside = Beside(predictor=made.directory)
    model = load_model(made.directory, device, kernels, torch.float32, beside=beside)
    assert isinstance(model, Decoder)
    assert model.predictor is not None
    config = model.config
    limits = make_limits(**{"vocab_size": config.vocab_size, "recurrent": config.recurrent, **changes})
    kv = kernels.kv_format("auto", torch.float32)
    caches, own = (
        make_caches(each.config, limits.num_blocks, limits.block_size, kv, device)
        for each in (model, model.predictor)
    )
    for cache in (*caches, *own):
        for tensor in cache.tensors():
            tensor.fill_(torch.nan)
    return Runner(model, caches, kernels, limits, Checked(made, model.predictor, own, kernels))


@pytest.mark.parametrize(
    ("kernels", "block_size"),
    [
        (ReferenceKernels, 1),
        (native, 3),
        (native, 64),
        *((partial(back_end, name), 16) for name in TRITON),
    ],
)
def test_it_guesses_as_transformers_does(
    made: SimpleNamespace, kernels: Callable[[], Kernels], block_size: int
) -> None:
    """Behind prompts in chunks, beside other rows, after guesses and drafts that do not hold."""
    runner = drafting(made, kernels(), block_size=block_size, num_blocks=256)
    driver, chance = Driver(runner, seed=1), Random(3)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(3)]
    while min(len(sequence.tokens) for sequence in sequences) < len(PROMPT) + 8:
        rows, drafts = [], dict[int, list[int]]()
        for sequence in chance.sample(sequences, chance.randrange(1, 4)):
            missing = len(sequence.tokens) - sequence.computed
            rows.append((sequence, count := min(missing, chance.randrange(1, 8))))
            if count == missing == 1 and len(sequence.tokens) < 80:
                length = chance.randrange(4)
                wrong = [chance.randrange(97) for _ in range(length)]
                drafts[sequence.slot] = chance.choice(([GUESS] * length, [GUESS] * length, wrong))
        driver.step(*rows, drafts=drafts)
    assert isinstance(runner.drafter, Checked)
    assert runner.drafter.guessed > 10


def test_it_guesses_the_same_whatever_blocks_are_shared(made: SimpleNamespace) -> None:
    """Requests that begin alike, in a pool that is too small for all: cached prefixes, copies, preemption.
    Answers are as without drafts.

    Samples of models without recurrent layers fork behind the newest token of the first one, whose state the
    copied block has: guesses behind it are a little different.
    """
    sizes = {"num_blocks": 12, "block_size": 8, "max_model_len": 96, "max_slots": 8}
    runner = drafting(made, native(), **sizes)
    plain = Runner(runner.model, runner.caches[: -len(runner.drafter.caches)], runner.kernels, runner.limits)
    answers, states = [], set[State]()
    for each, speculation in ((plain, "off"), (runner, "mtp")):
        one, chance = ClosedLoop(each, speculation), Random(2)
        groups = []
        for number in range(7):
            prompt = PROMPT[: 17 - number % 2] + [number] * (number % 3)
            request = Request(
                str(number),
                array("i", prompt),
                sampling=sampled(seed=number),
                max_tokens=18,
                n=1 + number % 2 if runner.limits.recurrent else 1,
            )
            groups.append(one.ask(request))
            for _ in range(chance.randrange(5)):
                one.step()
        while any(group.unfinished for group in groups) or one.scheduler.in_flight:
            one.step()
            states |= {sequence.state for group in groups for sequence in group.sequences}
        answers.append([[each.tokens for each in group.sequences] for group in groups])
    assert answers[0] == answers[1]
    assert State.PREEMPTED in states
    assert isinstance(runner.drafter, Checked)
    assert runner.drafter.guessed > 20


@pytest.mark.parametrize("made", ["Qwen3.5 MoE"], indirect=True)
def test_all_ranks_guess_the_same(made: SimpleNamespace) -> None:
    """A worker of two processes guesses and answers as one does."""
    found = []
    for ranks in (1, 2):
        settings = {"model": made.directory, "device": "cpu", "threads": 2, "kv_memory": "4MiB"}
        runner = load(WorkerSettings(**settings, speculation="mtp", block_size=4, tensor_parallel=ranks))
        drafter, guesses = runner.drafter, list[list[int]]()
        assert drafter is not None
        propose = drafter.propose

        def watched(batch: Batch, rows: Rows, wanted: Int32s) -> None:
            propose(batch, rows, wanted)  # noqa: B023 - called before the next round
            end = int(rows.starts[0] + rows.counts[0])
            guesses.append(batch.tables.tokens[0, end - int(wanted[0]) : end].tolist())  # noqa: B023

        drafter.propose = watched  # type: ignore[method-assign]
        driver = Driver(runner)
        sequence = driver.admit(0, PROMPT, sampling=greedy())
        driver.step((sequence, len(PROMPT)))
        while len(sequence.tokens) < len(PROMPT) + 16:
            driver.step((sequence, 1), drafts={0: [GUESS] * 3})
        found.append((sequence.tokens, guesses))
        runner.close()
    assert found[0] == found[1]


def steps(runner: Runner) -> int:
    """Steps with three guesses in each that an answer of the shipped model takes, of 99 tokens."""
    driver, count = Driver(runner), 0
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    prompt = tokenizer("<|begin|><|user|>Tell me a story about a fox.<|end|><|assistant|>")["input_ids"]
    sequence = driver.admit(0, prompt)
    driver.step((sequence, len(prompt)))
    while len(sequence.tokens) < len(prompt) + 99:
        driver.step((sequence, 1), drafts={0: [GUESS] * 3})
        count += 1
    return count


def test_guesses_of_a_head_of_4_bits_hold_nearly_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in range(2):
        runner = load(WorkerSettings(**SHIPPED))
        found.append(steps(runner))
        monkeypatch.setattr(CpuKernels, "rough", None)
    assert found[0] <= found[1] + 4


@pytest.mark.parametrize("made", ["Qwen3.5"], indirect=True)
def test_the_layer_may_lie_in_another_checkpoint(made: SimpleNamespace) -> None:
    """As that of the shipped model does, and as it is where a model was quantized without it."""
    runner = load(WorkerSettings(**SHIPPED))
    assert steps(runner) < 45
    names = {"model": made.directory, "draft_model": SHIPPED_MODEL}
    with pytest.raises(ModelError, match="mtp: no layer for multi-token prediction: the checkpoint has no"):
        load(WorkerSettings(**SHIPPED | names))


def test_a_model_without_the_layer_is_refused(tmp_path: Path, settings: Any) -> None:
    what = "QUIRE_SPECULATION=mtp: no layer for multi-token prediction: "
    with pytest.raises(ModelError, match=f"{what}the checkpoint has no tensor model.layers.2.eh_proj.weight"):
        load(settings(speculation="mtp"))
    random_model(*MODELS["Mistral"]).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=what):
        load(settings(model=tmp_path, speculation="mtp"))
