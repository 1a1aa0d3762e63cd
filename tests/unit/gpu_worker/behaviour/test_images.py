"""Models that see compute what transformers computes: in chunks, beside other rows, forked and resumed."""

import json
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.memory.cache import make_caches
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.load import Beside, load_model
from gpu_worker.models.vision import load_tower
from gpu_worker.step.images import NOT_BY_ALL, SlotImages, slot_images
from gpu_worker.step.predicted import PredictedTokens
from gpu_worker.step.runner import Runner
from proto.images_pb2 import PromptImage
from proto.sampling import greedy
from proto.sampling_pb2 import TokenRules
from tests.support.logits import watch_logits
from tests.support.predictors import add_predictor
from tests.support.ranks import Together, same
from tests.support.seeing import PLACEHOLDER, SEEING, Seeing, logits_with, picture, seeing, with_images
from tests.unit.gpu_worker.conftest import (
    BACK_ENDS,
    CPU,
    Driver,
    Running,
    back_end,
    llama,
    make_limits,
    make_runner,
    new_slot,
    plan,
    unpack,
)

SIZES = {"num_blocks": 256, "max_model_len": 200, "max_step_tokens": 256}
TEXT = [5, 17, 3, 80, 41]
BLIND = greedy(rules=TokenRules(biased_tokens=[PLACEHOLDER], biases=[-100]))
"""Never writes a placeholder, which transformers would take for one more image."""
FILES = (picture(24, 15), picture(9, 31, seed=1))
BEST = build.supported()[0]
FLOAT = torch.float32


@pytest.fixture(scope="module", params=SEEING)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return seeing(request.param, tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module", params=["Qwen3VL", "Qwen3_5", "Mistral3", "SmolVLM", "Gemma3"])
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    """Of each way to see one: with further layers, states, ends of rows, in tiles, all tokens together."""
    return seeing(request.param, tmp_path_factory.mktemp("seeing"))


def prompts_of(made: Seeing) -> list[tuple[list[int], list[PromptImage], list[bytes]]]:
    parts = ([*TEXT, FILES[0], *TEXT, FILES[1], 7], [FILES[1], 8, 9], TEXT * 3)
    files = (FILES, FILES[1:], ())
    return [(*with_images(made.vision, part), list(own)) for part, own in zip(parts, files, strict=True)]


def chunk_of(made: Seeing, size: int) -> int:
    """Of prompts: `size` tokens, or all of them if no chunk may end within an image."""
    return size if made.vision.together == "nowhere" else 1 << 30


def logits_of(seen: Any, sequence: Running) -> torch.Tensor:
    return torch.stack([seen[sequence.slot, position] for position in range(sequence.computed)])


def mixed_steps(made: Seeing, driver: Driver, sequences: list[tuple[Running, list[PromptImage]]]) -> None:
    """As `Driver.mixed_steps`. No chunk ends within an image whose tokens see each other."""
    length, step = max(len(sequence.tokens) for sequence, _ in sequences) + 15, 0
    while min(len(sequence.tokens) for sequence, _ in sequences) < length:
        rows = []
        for slot, (sequence, images) in enumerate(sequences):
            if step < 2 * slot or len(sequence.tokens) >= length:
                continue
            end = min(len(sequence.tokens), sequence.computed + 1 + (step + slot) % 5)
            if made.vision.together != "nowhere":
                ends = {image.position + image.tokens for image in images if image.position < end}
                end = max(end, *(each for each in ends if each > sequence.computed), 0)
            rows.append((sequence, end - sequence.computed))
        driver.step(*rows)
        step += 1


def check_mixed(made: Seeing, runner: Any) -> None:
    """Two images, one and none in one batch."""
    seen, driver, prompts = watch_logits(runner), Driver(runner), prompts_of(made)
    sequences = [
        driver.admit(slot, tokens, images=images, sampling=BLIND)
        for slot, (tokens, images, _) in enumerate(prompts)
    ]
    mixed_steps(made, driver, list(zip(sequences, (images for _, images, _ in prompts), strict=True)))
    for sequence, (tokens, _, files) in zip(sequences, prompts, strict=True):
        found = logits_of(seen, sequence)
        expected = logits_with(made, sequence.tokens[: sequence.computed], files)
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
        if len(files) == 1:
            other = logits_with(made, tokens, [picture(9, 31, seed=2)])
            apart = (found[: len(tokens)] - other)[-2:].norm()
            assert apart > 0.05 * other[-2:].norm(), "what is seen changes little"


@pytest.mark.parametrize("name", ["torch", BEST])
def test_every_family(made: Seeing, name: str) -> None:
    check_mixed(made, make_runner(made.directory, back_end(name), **SIZES))


def test_the_largest_image_is_rehearsed(made: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = load_tower(made.directory, 1024, None, CPU, FLOAT)
    assert tower is not None
    seen, see = list[int](), tower.see
    monkeypatch.setattr(tower, "see", lambda prepared: seen.append(len(see(prepared).vectors)))
    tower.rehearse()
    largest = made.vision.run(made.vision.grid(*made.vision.largest)).count(PLACEHOLDER)
    assert seen == [largest]
    for width, height in ((300, 300), (300, 40), (40, 300), (400, 300), (300, 400)):
        assert made.vision.run(made.vision.grid(width, height)).count(PLACEHOLDER) <= largest


WHOLE = {"SmolVLM": {"do_image_splitting": False}, "InternVL": {"crop_to_patches": False}}
"""What transformers' image processor is told of an image that is not to be cut."""


@pytest.mark.parametrize("name", WHOLE)
def test_an_image_of_low_detail_is_not_cut(tmp_path: Path, name: str) -> None:
    made = seeing(name, tmp_path)
    driver = Driver(runner := make_runner(made.directory, back_end(BEST), **SIZES))
    seen = watch_logits(runner)
    tokens, images = with_images(made.vision, [*TEXT, FILES[0]], low_detail=True)
    sequence = driver.admit(0, tokens, images=images, sampling=BLIND)
    driver.step((sequence, len(tokens)))
    expected = logits_with(made, tokens, [FILES[0]], **WHOLE[name])
    torch.testing.assert_close(logits_of(seen, sequence), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", [name for name in BACK_ENDS if name not in ("torch", BEST)])
def test_every_back_end(one: Seeing, name: str) -> None:
    check_mixed(one, make_runner(one.directory, back_end(name), **SIZES))


def test_ranks(one: Seeing) -> None:
    """Each rank sees whole images."""
    ranks = Together(2, lambda ranks: make_runner(one.directory, ReferenceKernels(), ranks=ranks, **SIZES))
    seen, driver = [watch_logits(runner) for runner in ranks.runners], Driver(ranks)
    tokens, images, files = prompts_of(one)[0]
    sequence = driver.admit(0, tokens, images=images, sampling=BLIND)
    driver.generate(sequence, 6, chunk_of(one, 9))
    logits = [logits_of(each, sequence) for each in seen]
    assert same(logits)
    expected = logits_with(one, sequence.tokens[: sequence.computed], files)
    torch.testing.assert_close(logits[0], expected, atol=2e-3, rtol=2e-3)


def test_an_image_that_one_rank_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sequence fails on all of them: otherwise they would compute different rows."""
    made = seeing("Qwen3VL", tmp_path)
    ranks = Together(2, lambda ranks: make_runner(made.directory, ReferenceKernels(), ranks=ranks, **SIZES))

    def see(prepared: Any) -> None:
        raise MemoryError("on another rank")

    monkeypatch.setattr(ranks.runners[1].batch.images.tower, "see", see)
    tokens, images, _ = prompts_of(made)[1]
    new = [new_slot(0, tokens, range(40), images=images), new_slot(1, TEXT, range(40, 44))]
    first = plan(1, [(0, 0, len(tokens), 1), (1, 0, 5, 1)], new_slots=new)
    found = []
    for step in (first, plan(2, [(0, len(tokens), 1, 1), (1, 5, 1, 1)])):
        result = ranks.execute(step)
        assert [(error.row, error.message) for error in result.errors] == [(0, NOT_BY_ALL)]
        found.append(unpack(result.tokens)[1])
    alone = Driver(make_runner(made.directory, ReferenceKernels(), **SIZES))
    assert alone.generate(alone.admit(1, TEXT), 2) == found


def test_drafts_that_hold_and_that_do_not(one: Seeing) -> None:
    tokens, images, _ = prompts_of(one)[0]
    plain = Driver(make_runner(one.directory, back_end(BEST), **SIZES))
    truth = plain.generate(plain.admit(0, tokens, images=images, sampling=BLIND), 12)
    driver = Driver(make_runner(one.directory, back_end(BEST), **SIZES))
    sequence = driver.admit(0, tokens, images=images, sampling=BLIND)
    driver.step((sequence, len(tokens)))
    while (known := len(sequence.tokens) - len(tokens)) < len(truth):
        drafts = [*truth[known : known + 2], 7]
        driver.step((sequence, len(sequence.tokens) - sequence.computed), drafts={0: drafts})
    assert sequence.tokens[len(tokens) :][: len(truth)] == truth


def test_a_resumed_sequence_sees_again_and_a_cached_image_is_not_looked_at(one: Seeing) -> None:
    runner = make_runner(one.directory, back_end(BEST), **SIZES)
    tokens, images, _ = prompts_of(one)[0]
    driver = Driver(runner)
    sequence = driver.admit(0, tokens, images=images, sampling=BLIND)
    begun = driver.generate(sequence, 5)
    blocks = list(sequence.blocks)
    rest = driver.generate(sequence, 4)
    # Preempted, or on another worker: with all that is known.
    again = driver.admit(1, tokens + begun, images=images, sampling=BLIND, prompt_length=len(tokens))
    assert driver.generate(again, 4, chunk_of(one, 11)) == rest
    assert runner.batch.images.watch.count == 2 * len(images)
    # All of its full blocks were in the cache.
    size = runner.limits.block_size
    start = (len(tokens) + len(begun) - 1) // size * size
    if runner.limits.recurrent:
        return  # the state after these blocks has gone on
    cached = new_slot(
        *(2, tokens + begun, blocks[: start // size]),
        images=[PromptImage(**_without_file(image)) for image in images],
        sampling=BLIND,
        prompt_length=len(tokens),
    )
    count = len(tokens) + len(begun) - start
    more = ([2], [driver.free.pop()])
    result = runner.execute(
        plan(driver.steps + 1, [(2, start, count, 1)], new_slots=[cached], table_appends=more)
    )
    assert not result.errors
    assert unpack(result.tokens) == rest[:1]
    assert runner.batch.images.watch.count == 2 * len(images), "nothing is seen again"


def _without_file(image: PromptImage) -> dict[str, Any]:
    return {name: getattr(image, name) for name in ("position", "tokens", "rows", "columns")}


def test_a_fork_sees_what_its_parent_sees(one: Seeing) -> None:
    """Also from within an image, of which it computes the rest itself."""
    runner = make_runner(one.directory, back_end(BEST), block_size=2, **SIZES)
    tokens, images, files = prompts_of(one)[1]
    seen, driver = watch_logits(runner), Driver(runner)
    parent = driver.admit(0, tokens, images=images, sampling=BLIND)
    begun = 4 if one.vision.together == "nowhere" else images[0].position + images[0].tokens
    driver.step((parent, begun))
    child = driver.admit(
        *(1, tokens[begun:]),
        forked_from=0,
        forked_tokens=begun,
        prompt_length=len(tokens),
        sampling=BLIND,
    )
    child.tokens, child.computed = list(tokens), begun
    child.blocks = parent.blocks[: begun // 2]
    driver.generate(parent, 4)
    driver.step((child, len(tokens) - begun))
    driver.generate(child, 3)
    assert child.tokens == parent.tokens
    expected = logits_with(one, child.tokens[: child.computed], files)
    found = torch.stack([seen[1, position] for position in range(begun, child.computed)])
    torch.testing.assert_close(found, expected[begun:], atol=2e-3, rtol=2e-3)


def test_answers_go_on_beside_a_tower_that_takes_long(one: Seeing) -> None:
    """And the number of the images is told once all of them have been seen."""
    runner = make_runner(one.directory, back_end(BEST), **SIZES)
    told, driver = SimpleQueue[int](), Driver(runner)
    runner.announce_sights(told.put)
    parts, begins, go_on = list[int](), threading.Event(), threading.Event()
    assert runner.batch.images is not None
    tower, pass_on = runner.batch.images.tower, runner.batch.images.tower.between_parts

    def slow() -> None:
        parts.append(len(parts))
        begins.set()
        while not go_on.is_set():
            pass_on()
            time.sleep(0.001)

    tower.between_parts = slow
    answer = driver.admit(1, TEXT, sampling=BLIND)
    tokens, images, _ = prompts_of(one)[0]
    asks = driver.admit(0, tokens, images=images, sampling=BLIND, sight=7)
    begun = driver.generate(answer, 9)
    driver.step((asks, len(TEXT)), (answer, 1))
    assert begins.wait(30)
    assert told.empty()
    assert parts == [0], "the tower has stopped before its first part"
    go_on.set()
    assert told.get(timeout=30) == 7
    assert len(parts) > 2 * len(images)
    answered = driver.generate(asks, 5, chunk_of(one, 9))
    plain = Driver(make_runner(one.directory, back_end(BEST), **SIZES))
    other, alone = plain.admit(1, TEXT, sampling=BLIND), plain.admit(0, tokens, images=images, sampling=BLIND)
    assert plain.generate(other, 9) == begun
    assert plain.generate(alone, 5) == answered


def test_the_thread_that_looks_is_on_the_gpu_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new thread is on the first GPU, and on the stream of steps, which would wait for it."""
    chosen = list[tuple[str, Any]]()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda gpu: chosen.append((threading.current_thread().name, gpu))
    )
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "its own")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: chosen.append(("stream", stream)))
    tower: Any = SimpleNamespace(vision=SimpleNamespace(in_grid=False, together="nowhere"))
    images = SlotImages(1, tower, 0, torch.device("cuda"))
    images._thread.submit(lambda: None).result()
    assert chosen == [("images_0", 1), ("stream", "its own")]


def test_nobody_looks_at_images_of_who_has_left(one: Seeing) -> None:
    runner = make_runner(one.directory, back_end(BEST), **SIZES)
    driver, told = Driver(runner), SimpleQueue[int]()
    runner.announce_sights(told.put)
    tokens, images, _ = prompts_of(one)[0]
    assert runner.batch.images is not None
    with runner.batch.images.turns or nullcontext():  # the tower waits for its turn
        runner.batch.images.set(new_slot(2, tokens, [], images=images, sight=1))
        runner.batch.images.drop(np.array([2], np.int32))
    assert told.get(timeout=30) == 1
    assert runner.batch.images.watch.count <= 1, "one may have been begun"
    sequence = driver.admit(0, tokens, images=images, sampling=BLIND)
    driver.generate(sequence, 2, chunk_of(one, 9))


def test_who_has_many_images_does_not_keep_others_waiting(tmp_path: Path) -> None:
    made = seeing("Qwen3VL", tmp_path)
    runner = make_runner(made.directory, back_end(BEST), **SIZES)
    told = SimpleQueue[int]()
    runner.announce_sights(told.put)
    slots = runner.batch.images
    assert slots is not None
    many, images = with_images(made.vision, [part for seed in range(9) for part in (3, picture(8, 8, seed))])
    one, its = with_images(made.vision, [3, FILES[1]])
    with slots.turns or nullcontext():
        slots.set(new_slot(0, many, [], images=images, sight=1))
        slots.set(new_slot(1, one, [], images=its, sight=2))
    assert [told.get(timeout=30), told.get(timeout=30)] == [2, 1]
    assert slots.watch.count == 10


FAULTS = {
    "beyond the tokens": ({"position": 200}, "an image of"),
    "no rows": ({"rows": 0}, "an image of"),
    "too many rows": ({"rows": 2**31}, "an image of"),
    "another run": ({"tokens": 5, "rows": 1, "columns": 3}, "for an image of 1 rows and 3 columns"),
    "no file": ({"data": b""}, "an image is not there"),
    "no image": ({"data": b"no image"}, "an image is in none of the formats"),
    "half an image": ({"data": FILES[0][: len(FILES[0]) // 2]}, "damaged"),
}


@pytest.mark.parametrize(("changes", "message"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_image_is_one_sequences_fault(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    made = seeing("Qwen3VL", tmp_path)
    runner = make_runner(made.directory, ReferenceKernels(), **SIZES)
    tokens, (image, *_), _ = prompts_of(made)[0]
    given = PromptImage(position=image.position, tokens=image.tokens, rows=image.rows, columns=image.columns)
    given.data = image.data
    for name, value in changes.items():
        setattr(given, name, value)
    told = SimpleQueue[int]()
    runner.announce_sights(told.put)
    new = [new_slot(0, tokens, range(40), images=[given], sight=3), new_slot(1, TEXT, range(40, 44))]
    result = runner.execute(plan(1, [(0, 0, len(tokens), 1), (1, 0, 5, 1)], new_slots=new))
    (error,) = result.errors
    assert error.row == 0
    assert message in error.message
    assert told.get(timeout=30) == 3, "rows are planned, and so the fault is known"
    alone = Driver(make_runner(made.directory, ReferenceKernels(), **SIZES))
    assert unpack(result.tokens)[1:] == alone.generate(alone.admit(1, TEXT), 1)


def test_a_worker_without_the_tower_refuses_images(tmp_path: Path) -> None:
    made = seeing("Qwen3VL", tmp_path)
    model = load_model(made.directory, CPU, ReferenceKernels())
    assert isinstance(model, Decoder)
    assert model.tower is None
    llama().save_pretrained(tmp_path / "blind")
    runner = make_runner(tmp_path / "blind", ReferenceKernels(), **SIZES)
    tokens, images, _ = prompts_of(made)[0]
    result = runner.execute(
        plan(1, [(0, 0, 9, 0)], new_slots=[new_slot(0, tokens, range(40), images=images)])
    )
    assert result.errors[0].message == "this worker sees no images"


def test_a_tower_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    seeing("Qwen3VL", tmp_path)
    tensors = load_file(path := tmp_path / "model.safetensors")
    tensors.pop("model.visual.blocks.1.attn.qkv.weight")
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"vision tower .* tensor .*blocks.1.attn.qkv.weight is missing"):
        load_model(tmp_path, CPU, ReferenceKernels(), beside=Beside(image_tokens=1024))


def test_the_models_own_layer_drafts_behind_images(tmp_path: Path) -> None:
    """It is given what the model sees, and its guesses change no token."""
    made = seeing("Qwen3_5", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    text = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**config["text_config"]))
    add_predictor(tmp_path, text)
    (tmp_path / "config.json").write_text(json.dumps(config))
    kernels = back_end(BEST)
    model = load_model(tmp_path, CPU, kernels, beside=Beside(predictor=tmp_path, image_tokens=1024))
    assert isinstance(model, Decoder)
    assert model.predictor is not None
    limits = make_limits(recurrent=True, images=True, **SIZES)
    caches, own = (
        make_caches(each.config, limits.num_blocks, limits.block_size, kernels.kv_format("auto", FLOAT), CPU)
        for each in (model, model.predictor)
    )
    drafter = PredictedTokens(model.predictor, own, kernels)
    images = slot_images(model, limits, CPU)
    driver = Driver(Runner(model, caches, kernels, limits, drafter, images=images))
    given = list[torch.Tensor]()
    embedding_norm = model.predictor._embedding_norm
    model.predictor._embedding_norm = lambda embedded: given.append(embedded) or embedding_norm(embedded)
    tokens, about, _ = prompts_of(made)[0]
    sequence = driver.admit(0, tokens, images=about, sampling=BLIND)
    driver.step((sequence, len(tokens)))
    places = [place for place, token in enumerate(tokens) if token == PLACEHOLDER]
    assert len(given[0][places].unique(dim=0)) == len(places), "placeholders have one embedding"
    while len(sequence.tokens) < len(tokens) + 12:
        driver.step((sequence, len(sequence.tokens) - sequence.computed), drafts={0: [-1, -1]})
    plain = Driver(make_runner(tmp_path, kernels, **SIZES))
    truth = plain.generate(plain.admit(0, tokens, images=about, sampling=BLIND), 12)
    assert sequence.tokens[len(tokens) :][:12] == truth
