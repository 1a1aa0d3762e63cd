"""Steps in buffers of a few sizes. On a CPU nothing is recorded: what would be replayed is computed again."""

import gc
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.rows import Rows, SlotTables
from gpu_worker.kernels.triton.graphs.graphs import StepGraphs, recorder
from gpu_worker.kernels.triton.graphs.layouts import DecodeLayout, Layout, RaggedLayout, layouts_for
from gpu_worker.memory.cache import make_caches
from gpu_worker.step.batch import Batch
from gpu_worker.step.draft_model import DraftModel
from gpu_worker.step.forward import Forward
from gpu_worker.step.runner import Runner
from tests.support.logits import watch_logits
from tests.support.seeing import logits_with, picture, seeing, with_images


def test_layouts() -> None:
    layouts = layouts_for(max_slots=40, max_step_tokens=100)
    one_each = [layout.tokens for layout in layouts if isinstance(layout, DecodeLayout)]
    assert one_each == [*range(1, 17), 20, 24, 28, 32, 40]
    assert layouts[len(one_each) :] == [
        *(RaggedLayout(8, rows) for rows in (4, 8)),
        *(RaggedLayout(16, rows) for rows in (4, 16)),
        *(RaggedLayout(32, rows) for rows in (4, 16, 32)),
        *(RaggedLayout(64, rows) for rows in (4, 16, 40)),
        *(RaggedLayout(100, rows) for rows in (4, 16, 40)),
    ]


def test_there_is_a_layout_for_all_steps_up_to_the_largest() -> None:
    layouts = layouts_for(max_slots=1000, max_step_tokens=2048)
    for rows, tokens in product((*range(1, 70), 255, 256), (*range(1, 70), 300, 511, 900, 1024)):
        if rows <= tokens:
            layout = next(layout for layout in layouts if layout.fits(rows, tokens))
            if rows == tokens:
                assert isinstance(layout, DecodeLayout)
                assert layout.tokens <= max(tokens + 1, 1.25 * tokens)
            else:
                assert layout.tokens <= max(8, min(2 * tokens, tokens + 128))
    for rows, tokens in ((257, 257), (257, 400), (1, 1025)):
        assert not any(layout.fits(rows, tokens) for layout in layouts)


def replayed(forward: Forward, batch: Batch, layouts: Sequence[Layout] = ()) -> list[Tensor]:
    """Have a model's steps computed in the buffers of recorded ones. Returns what will be computed.

    `layouts`: by default those that a worker records.
    """
    computed: list[Tensor] = []

    def record(compute):
        def replay():
            computed.append(compute())
            return computed[-1]

        return replay

    forward.recorded = StepGraphs(forward.compute, batch.tables, record)
    forward.recorded.prepare(layouts or layouts_for(batch.limits.max_slots, batch.limits.max_step_tokens))
    return computed


def test_replayed_steps_give_the_same_tokens(make, tiny) -> None:
    """Batches that grow and shrink, prompts in chunks beside them, and one step that there is no room for."""
    layouts = [
        DecodeLayout(1),
        DecodeLayout(3),
        DecodeLayout(6),
        RaggedLayout(7, 2),
        RaggedLayout(12, 3),
        RaggedLayout(19, 4),
    ]
    runner = make.runner(tiny.directory)
    computed = replayed(runner.forward, runner.batch, layouts)
    prompts = [[5, 17, 3, 88], [41, 9, 60], [2, 73, 28, 4, 4], [7], [*range(30, 50)]]
    driver = make.Driver(runner)
    sequences = [driver.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
    first, second, third, _, last = sequences
    driver.step(*((sequence, len(sequence.tokens)) for sequence in sequences))
    assert not computed
    for count in (5, 3, 1, 5):
        driver.step(*((sequence, 1) for sequence in sequences[:count]))
    assert [len(hidden) for hidden in computed] == [6, 3, 1, 6]
    driver.release(last)
    again = driver.admit(4, prompts[-1])
    driver.step((first, 1), (again, 5))
    driver.step((again, 9), (second, 1), (third, 1))
    driver.step((again, 6), (first, 1), (second, 1), (third, 1))
    assert [len(hidden) for hidden in computed[4:]] == [7, 12, 19]
    for prompt, sequence in zip((*prompts, prompts[-1]), (*sequences, again), strict=True):
        output = sequence.tokens[len(prompt) :]
        assert output
        assert output == make.expected(tiny.model, prompt, len(output))


def test_replayed_chunks_and_drafts(make, tiny) -> None:
    """Chunks beside decodes, then drafts, in the layouts that a worker records."""
    plain, runner = (make.runner(tiny.directory, max_slots=3, max_step_tokens=20) for _ in range(2))
    computed = replayed(runner.forward, runner.batch)
    answers = []
    for each in (plain, runner):
        driver = make.Driver(each, seed=2)
        prompts = [[(7 * slot + 3 * place) % 97 for place in range(5 + 4 * slot)] for slot in range(3)]
        sequences = [driver.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
        driver.mixed_steps(sequences, 16)
        for drafts in ({0: [1, 2, 3], 2: [5]}, {slot: [9, 8] for slot in range(3)}):
            rows = [(sequence, len(sequence.tokens) - sequence.computed) for sequence in sequences]
            driver.step(*rows, drafts=drafts)
        answers.append([sequence.tokens for sequence in sequences])
    assert answers[0] == answers[1]
    assert {len(hidden) for hidden in computed} >= {1, 3, 8, 16}


def test_a_replayed_draft_model_guesses_the_same(make, tiny) -> None:
    """The model as its own draft: all guesses hold, so that there are four tokens a step."""
    target = make.runner(tiny.directory)
    caches = make_caches(target.model.config, 64, 4, target.caches[0].format, torch.device("cpu"))
    drafter = DraftModel(target.model, caches, target.kernels, target.limits.vocab_size)
    runner = Runner(target.model, target.caches, target.kernels, target.limits, drafter)
    computed = [replayed(each.forward, runner.batch) for each in (runner, drafter)]
    driver, prompt = make.Driver(runner), [5, 17, 3, 88, 41]
    sequence = driver.admit(0, prompt)
    for _ in range(4):
        missing = len(sequence.tokens) - sequence.computed
        driver.step((sequence, missing), drafts={0: [-1, -1, -1]})
    assert sequence.tokens[len(prompt) :] == make.expected(tiny.model, prompt, 16)
    assert [len(found) for found in computed] == [4, 16]


def test_replayed_answers_about_images(make, tmp_path) -> None:
    """Behind images positions are shifted, for each slot by its own; beside them is one without."""
    made = seeing("Qwen3VL", tmp_path)
    runner = make.runner(made.directory, block_size=16, max_slots=3, max_model_len=80)
    computed = replayed(runner.forward, runner.batch)
    seen, driver, files = watch_logits(runner), make.Driver(runner), (picture(12, 9), picture(4, 15))
    parts = [[5, 17, files[0], 3], [41, files[1], 9, files[0]], [2, 73]]
    prompts = [with_images(made.vision, part) for part in parts]
    sequences = [driver.admit(slot, tokens, images=images) for slot, (tokens, images) in enumerate(prompts)]
    driver.step((sequences[0], 2), (sequences[1], 1))
    between = with_images(made.vision, parts[1][:3])[0]
    driver.step((sequences[0], len(prompts[0][0]) - 2), (sequences[1], len(between) - 2))
    driver.step((sequences[1], 1))
    driver.step((sequences[1], len(prompts[1][0]) - len(between)), (sequences[2], 2))
    assert not computed, "neither what is seen nor what is before it is replayed"
    driver.step(*((sequence, 1) for sequence in sequences))
    driver.step((sequences[0], 1), (sequences[1], 1))
    assert len(computed) == 2
    for sequence, own in zip(sequences, (files[:1], files[::-1], ()), strict=True):
        tokens = sequence.tokens[: sequence.computed]
        found = torch.stack([seen[sequence.slot, position] for position in range(len(tokens))])
        torch.testing.assert_close(found, logits_with(made, tokens, list(own)), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("layout", [DecodeLayout(3), RaggedLayout(7, 2)], ids=repr)
def test_padding_is_turned_by_a_line_of_the_tables(layout: Layout) -> None:
    """It is in a slot whose images shift what is behind them."""
    tokens, blocks = torch.zeros((2, 81), dtype=torch.int32), torch.zeros((2, 5), dtype=torch.int32)
    tables = SlotTables(tokens, blocks, 16, shifts=torch.tensor([-40, -3]))
    numbers = (np.array([number], np.int32) for number in (1, 60, 1, 1))
    inputs = torch.from_numpy(layout.inputs(Rows(np.zeros(1, np.intp), *numbers)))
    step = layout.metadata(inputs, tables)[1]
    assert step.turned is not None
    assert step.turned.tolist() == [57] + [0] * (layout.tokens - 1)


def test_nothing_is_collected_while_a_graph_is_recorded(monkeypatch) -> None:
    """What a finalizer unloads then would spoil the recording."""
    told = []

    class Graph:
        def replay(self):
            told.append("replayed")

    @contextmanager
    def record(graph, pool, stream, capture_error_mode):
        told.append("recording")
        yield
        told.append("recorded")

    for name, pretended in (("CUDAGraph", Graph), ("graph", record), ("Stream", object)):
        monkeypatch.setattr(torch.cuda, name, pretended)
    for name in ("graph_pool_handle", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    replay = recorder(lambda: told.append("counted"))(lambda: told.append(gc.isenabled()))
    assert told == [True, "recording", False, "recorded", "replayed", "counted"]
    replay()
    assert told[-4:] == ["replayed", "counted"] * 2, "ranks that stop before and behind a replay differ"
    assert gc.isenabled()
