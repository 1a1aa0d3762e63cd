"""Each sampling parameter against a plain reference, and rows that do not know of each other."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpu_worker.kernels import sampling as masks
from gpu_worker.kernels.cpu.sampling import Sampler
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.sampling import draw as reference_draw
from gpu_worker.kernels.reference.sampling import sample
from gpu_worker.kernels.sampling import DRAWS, RARE, RARE_FILTERS, Allowed, Biases
from gpu_worker.kernels.triton.sampling import sample as triton_sample
from gpu_worker.kernels.triton.sampling.sample import sample as in_triton
from gpu_worker.sampling.parameters import SamplingTable
from gpu_worker.step.batch import Batch
from gpu_worker.step.plan import read_plan
from proto.sampling import STAGED
from tests.support.native import TESTED, with_team
from tests.unit.gpu_worker.conftest import CPU, GPU, TRITON, makers

VOCAB = 97
PLAIN = {"reference": sample, "triton": in_triton}


@pytest.fixture(scope="module")
def make() -> SimpleNamespace:
    """No back end computes anything here but `choose`."""
    return makers(ReferenceKernels())


@pytest.fixture(params=["reference", *TRITON, *TESTED])
def choose(request):
    """Each implementation, with the reference's arguments."""
    if request.param in PLAIN:
        return PLAIN[request.param]
    sampler = Sampler(with_team(request.param, 2))
    return lambda logits, slots, _, positions, state, allowed=None: sampler(
        logits, slots, positions, state, allowed
    )


@pytest.fixture
def sampling(make, choose):
    """Samples for slots with given (tokens, prompt length, parameters, logits)."""

    def run(rows, index=0, allowed=None):
        limits = make.limits(max_slots=max(8, len(rows)))
        device = GPU if choose is in_triton else CPU
        batch = Batch(limits, device)
        slots = [
            make.slot(slot, tokens, [], prompt_length=prompt, sampling=params, sequence_index=index)
            for slot, (tokens, prompt, params, _) in enumerate(rows)
        ]
        batch.apply(read_plan(make.plan(1, new_slots=slots), 64))
        order = np.arange(len(rows), dtype=np.int32)
        logits = torch.stack([row[3] for row in rows]).to(device)
        before, places = logits.clone(), torch.from_numpy(order).long().to(device)
        found = choose(logits, order, places, batch.known[order], batch.sampling.state, allowed)
        assert torch.equal(logits.nan_to_num(), before.nan_to_num()), (
            "the caller's logits are not the sampler's to change"
        )
        if device.type == "cuda":
            found = found.on_host()
            torch.cuda.synchronize()
        return found

    return run


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def support(sampling, params, values, draws: int = 400) -> Counter[int]:
    """How often each token is drawn, over a number of positions."""
    found = Counter()
    for length in range(1, draws // 50 + 1):
        rows = []
        for seed in range(50):
            mine = type(params)()
            mine.CopyFrom(params)
            mine.seed = seed * 1009 + length
            rows.append(([1] * length, 1, mine, values))
        found.update(sampling(rows).tokens.tolist())
    return found


def test_greedy_takes_the_first_of_equals(make, sampling) -> None:
    values = torch.zeros(VOCAB)
    values[[40, 12, 70]] = 3.0
    assert sampling([([1], 1, make.greedy(), values)]).tokens.tolist() == [12]


def test_draws_follow_the_probabilities(make, sampling) -> None:
    values = torch.full((VOCAB,), -torch.inf)
    values[[3, 20, 50, 90]] = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    values = values * 0.5  # the temperature undoes it
    counts = support(sampling, make.sampled(temperature=0.5), values, draws=2000)
    assert set(counts) <= {3, 20, 50, 90}
    expected = {3: 200, 20: 400, 50: 600, 90: 800}
    assert sum((counts[token] - n) ** 2 / n for token, n in expected.items()) < 16.3  # p = 0.001


def test_top_k(make, sampling) -> None:
    values = logits() / 2
    best = set(values.topk(3).indices.tolist())
    assert set(support(sampling, make.sampled(top_k=3), values)) == best
    assert set(support(sampling, make.sampled(top_k=1), values)) == {int(values.argmax())}


def test_top_k_of_equals_is_exactly_k(make, sampling) -> None:
    assert set(support(sampling, make.sampled(top_k=2), torch.zeros(VOCAB))) == {0, 1}


def test_top_p_is_the_smallest_set_that_reaches_it(make, sampling) -> None:
    values = torch.full((VOCAB,), -torch.inf)
    values[[9, 4, 30, 31]] = torch.tensor([0.45, 0.3, 0.15, 0.1]).log()
    for top_p, kept in ((0.4, {9}), (0.5, {9, 4}), (0.8, {9, 4, 30}), (0.95, {9, 4, 30, 31})):
        assert set(support(sampling, make.sampled(top_p=top_p), values)) == kept


def test_top_p_counts_what_top_k_leaves(make, sampling) -> None:
    values = torch.full((VOCAB,), -torch.inf)
    values[[9, 4, 30, 31]] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the best two, 0.4/0.7 = 0.57 is enough.
    assert set(support(sampling, make.sampled(top_p=0.55, top_k=2), values)) == {9}


def test_min_p_is_relative_to_the_best(make, sampling) -> None:
    values = torch.full((VOCAB,), -torch.inf)
    values[[9, 4, 30, 31]] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for min_p, kept in ((0.05, {9, 4, 30, 31}), (0.2, {9, 4, 30}), (0.5, {9, 4}), (1.0, {9})):
        assert set(support(sampling, make.sampled(min_p=min_p), values)) == kept


def test_top_n_sigma_counts_deviations_below_the_best(make, sampling) -> None:
    """Whatever the temperature, and without tokens that are not allowed."""
    values = torch.full((VOCAB,), -torch.inf)
    values[[9, 4, 30, 31]] = torch.tensor([4.0, 3.0, 2.0, -1.0])  # a mean of 2, a deviation of 1.87
    for sigmas, kept in ((0.5, {9}), (0.6, {9, 4}), (1.1, {9, 4, 30}), (2.7, {9, 4, 30, 31})):
        params = make.sampled(top_n_sigma=sigmas, temperature=5.0)
        assert set(support(sampling, params, values, draws=2000)) == kept


def test_typical_p_keeps_what_surprises_as_expected(make, sampling) -> None:
    values = torch.full((VOCAB,), -torch.inf)
    # Surprises of 0.80, 1.39, 1.77 and 2.04 nats, of which 1.27 are expected.
    values[[9, 4, 30, 31]] = torch.tensor([0.45, 0.25, 0.17, 0.13]).log()
    for typical_p, kept in ((0.2, {4}), (0.3, {4, 9}), (0.75, {4, 9, 30}), (0.95, {4, 9, 30, 31})):
        assert set(support(sampling, make.sampled(typical_p=typical_p), values)) == kept
    assert set(support(sampling, make.sampled(typical_p=0.2, top_k=1), values)) == {9}


def test_xtc_leaves_the_least_likely_of_the_likely(make, sampling) -> None:
    values = torch.full((VOCAB,), -torch.inf)
    values[[9, 4, 30, 31]] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    for threshold, kept in ((0.35, {9, 4, 30, 31}), (0.25, {4, 30, 31}), (0.15, {30, 31}), (0.0, {31})):
        params = make.sampled(xtc_probability=1.0, xtc_threshold=threshold)
        assert set(support(sampling, params, values)) == kept
    # At half of the tokens; at those the best one, otherwise drawn at 0.4, is left out.
    params = make.sampled(xtc_probability=0.5, xtc_threshold=0.15)
    counts = support(sampling, params, values, draws=2000)
    assert abs(counts[9] - 400) < 72  # four standard deviations


def penalized(values, tokens, prompt, presence=0.0, frequency=0.0, repetition=1.0):
    """One token at a time, as the definitions read."""
    values = values.clone()
    for token in set(tokens):
        values[token] = values[token] / repetition if values[token] > 0 else values[token] * repetition
    output = Counter(tokens[prompt:])
    for token, count in output.items():
        values[token] -= presence + frequency * count
    return values


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence": 1.5},
        {"frequency": 0.9},
        {"repetition": 1.8},
        {"repetition": 0.6},
        {"presence": -0.7, "frequency": 0.4, "repetition": 1.3},
    ],
)
def test_penalties(make, sampling, penalties) -> None:
    generator = torch.Generator().manual_seed(3)
    rows, expected = [], []
    for seed in range(40):
        values = logits(seed)
        # Tokens from among the best, so that penalties change the choice.
        best = values.topk(6).indices
        tokens = best[torch.randint(0, 6, (9,), generator=generator)].tolist()
        params = make.greedy(**{f"{name}_penalty": value for name, value in penalties.items()})
        rows.append((tokens[: 3 + seed % 7], 2, params, values))
        expected.append(int(penalized(values, tokens[: 3 + seed % 7], 2, **penalties).argmax()))
    assert sampling(rows).tokens.tolist() == expected
    if penalties != {"repetition": 0.6}:
        assert expected != [int(row[3].argmax()) for row in rows]


def test_masks_and_biases_come_before_everything_else(make, sampling) -> None:
    """Rows with a mask, with biases, with both and with none; each greedy, penalized and drawn."""
    chance = np.random.default_rng(6)
    masks, words, counts, tokens, values, rows, expected = [], [], [], [], [], [], []
    for number in range(24):
        raw, known = logits(number), [int(logits(number).topk(4).indices[-1])] * 3
        changed = raw.clone()
        biased = chance.permutation(VOCAB)[: 9 * (number & 1)]
        added = chance.uniform(-9, 9, len(biased)).astype(np.float32)
        changed[torch.from_numpy(biased)] += torch.from_numpy(added)
        allowed = chance.random(VOCAB) < 0.3 if number & 2 else np.ones(VOCAB, np.bool_)
        changed[torch.from_numpy(~allowed)] = -torch.inf
        masks.append(len(words) if number & 2 else -1)
        if number & 2:
            bits = np.zeros(128, np.bool_)
            bits[:VOCAB] = allowed
            words.append(np.packbits(bits, bitorder="little").view(np.int32))
        counts.append(len(biased))
        tokens.extend(biased.tolist())
        values.extend(added.tolist())
        params = (make.greedy(), make.greedy(presence_penalty=1.5), make.sampled(seed=number, top_k=5))
        rows.append((known, 1, params[number // 4 % 3], raw))
        expected.append((known, 1, params[number // 4 % 3], changed))
    biases = Biases(
        np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        np.array(tokens, np.int32),
        np.array(values, np.float32),
    )
    allowed = Allowed(np.array(masks, np.int32), np.stack(words), biases)
    found = sampling(rows, allowed=allowed).tokens.tolist()
    assert found == sampling(expected).tokens.tolist()
    assert found != sampling(rows).tokens.tolist()


def test_many_rows_with_masks_or_rare_filters_are_done_a_few_at_a_time(make, monkeypatch) -> None:
    """Each takes some numbers for every token of the vocabulary: all at once they would take gigabytes."""
    state, count = SamplingTable(torch.zeros((70, 9), dtype=torch.int32), VOCAB).state, 70
    state.numbers.fill_(0.7)
    state.flags[:] = DRAWS | RARE_FILTERS
    order, values = np.arange(count, dtype=np.int32), torch.stack([logits(seed) for seed in range(count)])
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 4), np.int64).astype(np.int32)
    allowed = Allowed(np.where(order % 5, order % 3, -1).astype(np.int32), words)
    drawn, masked = list[int](), list[int]()
    monkeypatch.setattr(
        triton_sample, "draw", lambda *given: drawn.append(len(given[0])) or reference_draw(*given)
    )
    to_device = masks.to_device
    monkeypatch.setattr(masks, "to_device", lambda *given: masked.append(len(given[0])) or to_device(*given))
    given = (values, order, torch.from_numpy(order).long(), order, state, allowed)
    found = in_triton(*given)
    assert (drawn, masked) == ([14] * 5, [28, 28])
    assert found.tokens.tolist() == sample(*given).tokens.tolist()


def test_a_row_alone_and_among_others(make, sampling) -> None:
    rows = [
        ([5, 6, 7], 2, make.greedy(), logits(1)),
        ([5], 1, make.sampled(seed=2**64 - 3), logits(2)),
        ([8, 9], 1, make.sampled(seed=4, top_k=9, top_p=0.8, logprobs=3), logits(3)),
        ([1] * 9, 4, make.sampled(seed=4, presence_penalty=1.0, min_p=0.02), logits(4)),
        ([2] * 5, 1, make.greedy(repetition_penalty=1.4, logprobs=0), logits(5)),
    ]
    together = sampling(rows).tokens.tolist()
    assert [sampling([row]).tokens.tolist()[0] for row in rows] == together
    assert sampling(rows[::-1]).tokens.tolist() == together[::-1]


def test_seed_position_and_sequence_make_the_draw(make, sampling) -> None:
    values = torch.zeros(VOCAB)
    row = ([1, 1], 1, make.sampled(seed=11), values)
    others = [
        ([1, 1], 1, make.sampled(seed=12), values),
        ([1, 1], 1, make.sampled(seed=11 + (1 << 33)), values),
        ([1, 1, 1], 1, make.sampled(seed=11), values),
    ]
    token, *tokens = sampling([row, *others]).tokens.tolist()
    assert sampling([row]).tokens.tolist() == [token]
    assert token not in (*tokens, *sampling([row], index=1).tokens.tolist())


def test_temperature_close_to_zero_is_greedy_and_finite(make, sampling) -> None:
    assert sampling([([1], 1, make.sampled(temperature=1e-30), logits())]).tokens.tolist() == [
        int(logits().argmax())
    ]


def test_logprobs_are_of_the_raw_logits(make, sampling) -> None:
    params = make.sampled(temperature=0.3, top_k=2, repetition_penalty=2.0, logprobs=4)
    found = sampling([([1], 1, make.greedy(), logits(1)), ([1], 1, params, logits(2))])
    expected = logits(2).log_softmax(-1)
    assert found.logprobs.rows.tolist() == [1]
    assert found.logprobs.top_counts.tolist() == [4]
    assert math.isclose(found.logprobs.chosen.item(), expected[found.tokens[1]].item(), abs_tol=1e-6)
    torch.testing.assert_close(found.logprobs.top[0], expected.topk(4).values)
    assert found.logprobs.top_tokens[0].tolist() == expected.topk(4).indices.tolist()
    assert sampling([([1], 1, make.greedy(), logits(1))]).logprobs is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_none_are_told_apart(make, sampling, bad) -> None:
    broken = logits(1)
    broken[50] = bad
    rows = [
        ([1], 1, params, values)
        for params in (make.greedy(), make.sampled())
        for values in (broken, logits(2))
    ]
    found = sampling(rows)
    assert found.finite.tolist() == [False, True, False, True]
    assert ((found.tokens >= 0) & (found.tokens < VOCAB)).all()


def test_transformers_agrees_on_filters(make) -> None:
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    from gpu_worker.kernels.reference.sampling import _filter

    table = SamplingTable(torch.zeros((1, 9), dtype=torch.int32), vocab_size=7)
    table.set([make.slot(0, [1], [], sampling=make.sampled(top_p=0.7, top_k=12))])
    for seed in range(20):
        values = logits(seed)[None]
        kept = _filter(values - values.max(), torch.tensor([0]), table.state)[0].isfinite()
        expected = TopPLogitsWarper(0.7)(None, TopKLogitsWarper(12)(None, values))[0].isfinite()
        assert torch.equal(kept, expected)


def test_transformers_agrees_on_typical_p() -> None:
    from transformers.generation.logits_process import TypicalLogitsWarper

    from gpu_worker.kernels.reference.sampling import _keep_typical

    for seed in range(20):
        values = logits(seed)[None].double()
        values[0, seed : 3 * seed] = -torch.inf
        for mass in (0.1, 0.5, 0.95):
            kept = _keep_typical(values, torch.tensor([[mass]])).isfinite()
            assert torch.equal(kept, TypicalLogitsWarper(mass)(None, values).isfinite())


def random_rows(make, count: int, vocabulary: int):
    """Rows that ask for all kinds of things, over logits with many ties."""
    chance = np.random.default_rng(5)
    known = {"temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty"}
    known |= {"repetition_penalty", *RARE, "xtc_threshold"}
    others = [each for each in STAGED if each.name not in known]
    rows = []
    for number in range(count):
        params = make.sampled(
            temperature=float(chance.choice([0.0, 0.01, 0.7, 1.0, 3.0])),
            top_k=int(chance.choice([0, 1, 5, 40, vocabulary, vocabulary + 9])),
            top_p=float(chance.choice([0.001, 0.3, 0.9, 1.0])),
            min_p=float(chance.choice([0.0, 0.1, 1.0])),
            presence_penalty=float(chance.choice([0.0, 1.5])),
            frequency_penalty=float(chance.choice([0.0, -0.5])),
            repetition_penalty=float(chance.choice([1.0, 1.3])),
            top_n_sigma=float(chance.choice([0.0, 0.0, 0.0, 0.7, 2.5])),
            typical_p=float(chance.choice([1.0, 1.0, 1.0, 0.2, 0.9])),
            xtc_probability=float(chance.choice([0.0, 0.0, 0.0, 0.5, 1.0])),
            xtc_threshold=float(chance.choice([0.0, 0.02, 0.1, 0.3])),
            seed=int(chance.integers(1 << 63)),
            **{each.name: chance.choice([each.default, each.client.high / 2]).item() for each in others},
        )
        tokens = chance.integers(0, vocabulary, int(chance.integers(1, 40))).tolist()
        values = torch.from_numpy(chance.normal(0, 3, vocabulary).astype(np.float32))
        if number % 3 == 0:
            values = values.round()  # ties
        rows.append((tokens, len(tokens) // 2 + 1, params, values))
    return rows


def random_step(make, count: int, vocabulary: int):
    """Logits, slots, the tokens known of each, and what sampling reads of such rows."""
    rows = random_rows(make, count, vocabulary)
    batch = Batch(make.limits(max_slots=count, vocab_size=vocabulary), torch.device("cpu"))
    slots = [
        make.slot(slot, tokens, [], prompt_length=prompt, sampling=params)
        for slot, (tokens, prompt, params, _) in enumerate(rows)
    ]
    batch.apply(read_plan(make.plan(1, new_slots=slots), 64))
    slots = np.arange(count, dtype=np.int32)
    return torch.stack([row[3] for row in rows]), slots, batch.known[slots], batch.sampling.state


@pytest.mark.parametrize("instruction_set", TESTED)
@pytest.mark.parametrize("vocabulary", [97, 1000, 4096])
def test_cpp_chooses_what_the_reference_chooses(make, instruction_set, vocabulary) -> None:
    logits, slots, known, state = random_step(make, 600, vocabulary)
    found = Sampler(with_team(instruction_set, 2))(logits, slots, known, state)
    expected = sample(logits, slots, torch.from_numpy(slots).long(), known, state)
    # The logarithms differ in the last place: a draw may turn where two scores all but meet.
    assert (found.tokens != expected.tokens).sum() <= 2
    assert found.finite.all()
