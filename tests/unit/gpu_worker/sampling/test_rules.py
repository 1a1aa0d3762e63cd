"""Rules against transformers' logits processors, and what yields where nothing would be left."""

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, MinNewTokensLengthLogitsProcessor
from transformers.generation.logits_process import (
    NoBadWordsLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from gpu_worker.kernels.sampling import Allowed
from gpu_worker.sampling.dry import Dry as DryPenalty
from gpu_worker.sampling.dry import Repetitions
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.sampling.rules import Rules
from proto.sampling import greedy
from proto.sampling_pb2 import Dry, Pooling, TokenRules, TokenSequence
from proto.worker_pb2 import NewSlot

VOCAB = 40
SLOTS = 6


def new(slot: int, prompt: int, rules: TokenRules | None, **more: int) -> NewSlot:
    return NewSlot(slot=slot, prompt_length=prompt, sampling=greedy(rules=rules), **more)


def positions(rows: list[tuple[int, int, int]]) -> SamplePositions:
    """Rows are (slot, position of its first sampled token, number of sampled tokens)."""
    slots, firsts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    behind = np.concatenate([np.arange(count) for count in counts])
    return SamplePositions(
        rows=np.arange(len(rows)),
        counts=counts,
        row_slots=slots,
        slots=np.repeat(slots, counts),
        positions=(np.repeat(firsts, counts) + behind).astype(np.int32),
        logits_indices=np.arange(len(behind)),
        indices_in_row=behind,
    )


def applied(
    rules: Rules, samples: SamplePositions, tokens: torch.Tensor, raw: torch.Tensor, grammar: Allowed | None
) -> torch.Tensor:
    read = rules.read(samples, tokens)
    allowed = grammar if read is None else rules.add_to(grammar, read, samples)
    return raw if allowed is None else allowed.only(raw)


def random_rules(chance: np.random.Generator) -> TokenRules:
    rules = TokenRules()
    if chance.random() < 0.5:
        rules.biased_tokens[:] = chance.permutation(VOCAB)[:5].tolist()
        rules.biases[:] = chance.uniform(-100, 100, 5).astype(np.float32).tolist()
    if chance.random() < 0.5:
        rules.allowed_tokens[:] = chance.permutation(VOCAB)[:30].tolist()
    for length in chance.integers(1, 4, chance.integers(0, 12)).tolist():
        rules.bad_words.append(TokenSequence(tokens=chance.integers(0, 4, length).tolist()))
    if chance.random() < 0.5:
        rules.min_tokens, rules.end_tokens[:] = int(chance.integers(1, 9)), [6, 7]
    return rules


def processors(rules: TokenRules, prompt: int) -> LogitsProcessorList:
    """transformers', for rows whose `input_ids` are the output alone."""
    found = LogitsProcessorList()
    if rules.biased_tokens:
        pairs = zip(rules.biased_tokens, rules.biases, strict=True)
        found.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in pairs}))
    if rules.allowed_tokens:
        others = sorted(set(range(VOCAB)) - set(rules.allowed_tokens))
        found.append(SuppressTokensLogitsProcessor(others))
    if rules.bad_words:
        words = {tuple(word.tokens) for word in rules.bad_words}
        found.append(NoBadWordsLogitsProcessor([list(word) for word in words]))
    if rules.min_tokens:
        found.append(MinNewTokensLengthLogitsProcessor(0, rules.min_tokens, list(rules.end_tokens)))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_of_rules_against_transformers(seed: int) -> None:
    """Rows with drafts and without, with rules and without."""
    chance = np.random.default_rng(seed)
    rules, asked = Rules(SLOTS, VOCAB), []
    tokens = torch.from_numpy(chance.integers(0, 4, (SLOTS, 24), np.int32))
    prompts = chance.integers(1, 6, SLOTS).tolist()
    for slot, prompt in enumerate(prompts):
        asked.append(random_rules(chance) if chance.random() < 0.8 else None)
        message = new(slot, prompt, asked[-1])
        assert not rules.fault_in(message)
        rules.set(message)
    firsts, counts = chance.integers(6, 16, SLOTS).tolist(), chance.integers(1, 6, SLOTS).tolist()
    firsts[0] = prompts[0]  # the first token of an output
    order = chance.permutation(SLOTS).tolist()
    samples = positions([(slot, firsts[slot], counts[slot]) for slot in order])
    raw = torch.randn(len(samples.slots), VOCAB)
    found = applied(rules, samples, tokens, raw, None)
    for index, (slot, position) in enumerate(zip(samples.slots, samples.positions, strict=True)):
        output = tokens[slot, prompts[slot] : position].long()[None]
        expected, own = raw[index : index + 1], asked[slot]
        if own is not None:
            expected = processors(own, prompts[slot])(output, expected)
        torch.testing.assert_close(found[index], expected[0], atol=0, rtol=0)


@pytest.mark.parametrize(("last_n", "expected_count"), [(4, 2), (2**31 - 1, 4)])
def test_repetitions_in_prompt_and_output_and_drafts(last_n: int, expected_count: int) -> None:
    """Beside a bias of a repeated token, and beside a bad word, which begins in the output."""
    dry = Dry(dry_multiplier=2, dry_base=3, dry_allowed_length=1, dry_penalty_last_n=last_n)
    dry.breaker_tokens[:] = [9]
    asked = TokenRules(biased_tokens=[2, 7], biases=[5, 6], dry=dry)
    asked.bad_words.append(TokenSequence(tokens=[1, 2, 30]))
    rules = Rules(SLOTS, VOCAB)
    rules.set(new(3, 4, asked))
    tokens = torch.zeros((SLOTS, 24), dtype=torch.int32)
    tokens[3, :9] = torch.tensor([1, 2, 3, 1, 2, 3, 9, 1, 2])
    samples = positions([(3, 5, 5)])
    raw = torch.randn(5, VOCAB)
    found = applied(rules, samples, tokens, raw, None)
    alone, penalized = DryPenalty.of(dry), 0
    assert alone is not None
    for index, position in enumerate(range(5, 10)):
        expected = raw[index].clone()
        expected[[2, 7]] += torch.tensor([5.0, 6.0])
        followers, penalties = alone.penalties(alone.after(Repetitions(0), tokens[3, :position].tolist()))
        penalized += len(followers)
        expected[torch.from_numpy(followers).long()] -= torch.from_numpy(penalties)
        if position == 9:
            expected[30] = -torch.inf
        torch.testing.assert_close(found[index], expected)
    assert penalized == expected_count


def test_a_step_reads_what_has_come_since_the_last_one_for_the_penalty_of_repetitions() -> None:
    """Drafts that were not kept are forgotten, and a fork goes on with its parent's text if it is as long."""
    asked = TokenRules(dry=Dry(dry_multiplier=2, dry_base=3, dry_allowed_length=1, dry_penalty_last_n=12))
    chance = np.random.default_rng(3)
    tokens = torch.from_numpy(chance.integers(0, 3, (SLOTS, 40), np.int32))
    rules, alone = Rules(SLOTS, VOCAB), DryPenalty.of(asked.dry)
    assert alone is not None

    def counts_after(first: int, drafts: list[int], slot: int = 1) -> list[int]:
        kept = tokens[slot].clone()
        tokens[slot, first : first + len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
        samples, raw = positions([(slot, first, 1 + len(drafts))]), torch.zeros(1 + len(drafts), VOCAB)
        read = rules.read(samples, tokens)
        assert read is not None
        found = rules.add_to(None, read, samples)
        for index in range(1 + len(drafts)):
            text = alone.after(Repetitions(0), tokens[slot, : first + index].tolist())
            followers, penalties = alone.penalties(text)
            raw[index, torch.from_numpy(followers).long()] -= torch.from_numpy(penalties)
        expected, raw = raw, torch.zeros(1 + len(drafts), VOCAB)
        torch.testing.assert_close(raw if found is None else found.only(raw), expected)
        tokens[slot] = kept
        return read.counts

    rules.set(new(1, 4, asked))
    assert counts_after(20, [1, 1, 2]) == [12 + 3]
    assert counts_after(21, [0, 0]) == [1 + 2]
    rules.set(new(2, 4, asked, forked_tokens=22, forked_from=1))
    rules.set(new(3, 4, asked, forked_tokens=20, forked_from=1))
    tokens[2, :22], tokens[3, :20] = tokens[1, :22], tokens[1, :20]
    assert counts_after(23, [], 2) == [2]
    assert counts_after(23, [], 3) == [12]
    assert counts_after(24, []) == [3]
    rules.set(new(1, 4, asked))
    tokens[1] = tokens[1].flip(0)
    assert counts_after(24, []) == [12]


def masked(rules: TokenRules, output: list[int], grammar: list[int] | None = None) -> set[int]:
    """The tokens that may follow the output; `grammar`: those that a grammar allows."""
    table = Rules(SLOTS, VOCAB)
    table.set(new(2, 1, rules))
    tokens = torch.zeros((SLOTS, 24), dtype=torch.int32)
    tokens[2, 1 : 1 + len(output)] = torch.tensor(output, dtype=torch.int32)
    allowed = None
    if grammar is not None:
        bits = np.zeros(96, np.bool_)  # a tokenizer may know of more tokens than the model
        bits[grammar] = True
        allowed = Allowed(np.zeros(1, np.int32), np.packbits(bits, bitorder="little").view(np.int32)[None])
    samples = positions([(2, 1 + len(output), 1)])
    found = applied(table, samples, tokens, torch.zeros(1, VOCAB), allowed)
    return set(torch.isfinite(found[0]).nonzero().flatten().tolist())


def test_rules_narrow_down_what_a_grammar_allows() -> None:
    rules = TokenRules(allowed_tokens=[3, 4, 5, 6], min_tokens=2, end_tokens=[6])
    rules.bad_words.extend([TokenSequence(tokens=[5]), TokenSequence(tokens=[9, 4])])
    assert masked(rules, [9], [2, 3, 4, 5, 6]) == {3}
    assert masked(rules, [9, 8], [2, 3, 4, 5, 6]) == {3, 4, 6}
    assert masked(rules, [9]) == {3}


def test_a_rule_that_would_leave_nothing_is_passed_over() -> None:
    held = TokenRules(min_tokens=5, end_tokens=[6])
    assert masked(held, [1], [6]) == {6}
    assert masked(TokenRules(allowed_tokens=[3]), [1], [6]) == {6}
    bad = TokenRules(allowed_tokens=[3], bad_words=[TokenSequence(tokens=[3])])
    assert masked(bad, [1]) == {3}
    longer = TokenRules(
        allowed_tokens=[3, 4], bad_words=[TokenSequence(tokens=[1, token]) for token in (3, 4)]
    )
    assert masked(longer, [1]) == {3, 4}
    assert masked(longer, [2]) == {3, 4}


def test_without_rules_nothing_is_read_and_nothing_changes() -> None:
    rules = Rules(SLOTS, VOCAB)
    rules.set(new(1, 1, TokenRules(allowed_tokens=[3])))
    rules.set(new(2, 1, None))
    tokens = torch.zeros((SLOTS, 24), dtype=torch.int32)
    assert rules.read(positions([(2, 4, 3)]), tokens) is None
    rules.set(new(1, 1, None))
    assert rules.read(positions([(1, 4, 1), (2, 4, 1)]), tokens) is None
    ended = TokenRules(min_tokens=3, end_tokens=[5])
    rules.set(new(1, 1, ended))
    samples = positions([(1, 4, 1)])
    read = rules.read(samples, tokens)
    assert read is not None
    assert rules.add_to(None, read, samples) is None, "the tokens are there that it asked for"
    rules.reset()
    assert rules.read(samples, tokens) is None


def test_a_forked_sequence_has_its_parents_rules() -> None:
    rules = Rules(SLOTS, VOCAB)
    rules.set(new(1, 3, TokenRules(allowed_tokens=[3])))
    child = new(4, 3, TokenRules(), forked_tokens=3, forked_from=1)
    assert not rules.fault_in(child)
    rules.set(child)
    found = applied(
        rules, positions([(4, 3, 1)]), torch.zeros((SLOTS, 24)).int(), torch.zeros(1, VOCAB), None
    )
    assert torch.isfinite(found[0]).nonzero().flatten().tolist() == [3]
    assert "not forked" in rules.fault_in(new(5, 3, TokenRules(), forked_tokens=3, forked_from=2))


@pytest.mark.parametrize(
    "rules",
    [
        TokenRules(biased_tokens=[VOCAB], biases=[1]),
        TokenRules(allowed_tokens=[1, VOCAB]),
        TokenRules(end_tokens=[VOCAB]),
        TokenRules(bad_words=[TokenSequence(tokens=[1]), TokenSequence(tokens=[2, VOCAB])]),
    ],
)
def test_tokens_that_the_model_does_not_have(rules: TokenRules) -> None:
    assert f"token {VOCAB} is not in the vocabulary" in Rules(SLOTS, VOCAB).fault_in(new(0, 1, rules))


def test_beams_and_embeddings_have_no_rules() -> None:
    rules = Rules(SLOTS, VOCAB)
    for more in ({"candidates": 2}, {"pooling": Pooling.LAST}):
        assert "for a beam or an embedding" in rules.fault_in(new(0, 1, TokenRules(), **more))
