"""Steps in buffers of a few sizes. On a CPU nothing is recorded: what would be replayed is computed again."""

import gc
from contextlib import contextmanager
from itertools import pairwise

import torch

from gpu_worker.kernels.triton import graphs
from gpu_worker.kernels.triton.graphs import DecodeGraphs, recorder, sizes


def test_sizes() -> None:
    assert sizes(1) == [1]
    assert sizes(8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sizes(40)[-4:] == [24, 28, 32, 40]
    assert sizes(1000)[-1] == 256
    for size, larger in pairwise(sizes(256)):
        assert size < larger <= max(size + 1, 1.25 * size)


def test_replayed_steps_give_the_same_tokens(make, tiny, monkeypatch) -> None:
    """Batches that grow and shrink, beside steps with a chunk, which are not replayed."""
    monkeypatch.setattr(graphs, "sizes", lambda max_slots: [1, 3, 6])
    runner = make.runner(tiny.directory)
    computed = []

    def record(compute):
        def replay():
            computed.append(compute())
            return computed[-1]

        return replay

    runner.replayed = DecodeGraphs(runner.forward, runner.batch, record)
    runner.replayed.prepare()
    prompts = [[5, 17, 3, 88], [41, 9, 60], [2, 73, 28, 4, 4], [7], [11, 12]]
    driver = make.Driver(runner)
    sequences = [driver.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
    driver.step(*((sequence, len(sequence.tokens)) for sequence in sequences))
    assert not computed
    for count in (5, 3, 1, 5):
        driver.step(*((sequence, 1) for sequence in sequences[:count]))
    assert [len(hidden) for hidden in computed] == [6, 3, 1, 6]
    for prompt, sequence in zip(prompts, sequences, strict=True):
        output = sequence.tokens[len(prompt) :]
        assert output == make.expected(tiny.model, prompt, len(output))


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
    replay = recorder()(lambda: told.append(gc.isenabled()))
    assert told == [True, "recording", False, "recorded", "replayed"]
    replay()
    assert told[-2:] == ["replayed", "replayed"]
    assert gc.isenabled()
