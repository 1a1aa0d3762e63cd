"""Rules of the sequences in the slots: which tokens may be chosen, and what is added to their logits.

A rule depends on the slot's tokens alone, so it holds as well for a sequence that comes back after a
preemption, and for a position behind drafts. Rules narrow down what a grammar allows, one after the other:

    grammar  ▶  allowed tokens  ▶  bad words of one token  ▶  end tokens, while `min_tokens` is not reached
             ▶  last tokens of longer bad words, whose other tokens are there

A rule that would leave no token is passed over. So a grammar that is complete ends an answer before
`min_tokens`. Bad words are vLLM's: they are looked for in the output alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.sampling import Allowed, Biases
from gpu_worker.sampling.dry import Dry, Repetitions
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.sampling.tokens_read import TokensRead, read_tokens
from proto.sampling_pb2 import TokenRules
from proto.worker_pb2 import NewSlot

BITS = 32
"""Tokens of one word of a mask."""

_Biased = tuple[Int32s, NDArray[np.float32]]
"""Tokens, and what is added to the logit of each."""


@dataclass(frozen=True, slots=True)
class _SlotRules:
    """The rules of one slot."""

    masks: Sequence[Int32s]
    """Masks [words] that hold at every position, in their order."""
    before_end: Int32s | None
    """The mask of positions before `end_position`: all tokens but end tokens. None: there is none."""
    end_position: int
    """First position that may have an end token."""
    output_position: int
    """First position of the output."""
    bad_words: Mapping[int, Sequence[tuple[tuple[int, ...], int]]]
    """Bad words of several tokens by their last token but one: all tokens but the last, and the last one."""
    longest: int
    """Tokens of the longest bad word but its last."""
    biased: Int32s
    """Tokens with a bias."""
    biases: NDArray[np.float32]
    """The bias of each of them."""
    dry: Dry | None
    """The penalty for repetitions; None: there is none."""

    def masks_at(self, position: int) -> list[Int32s]:
        """The masks of a position, without those of bad words of several tokens."""
        masks = list(self.masks)
        if self.before_end is not None and position < self.end_position:
            masks.append(self.before_end)
        return masks

    def biases_after(self, text: Repetitions) -> _Biased:
        """Tokens with a bias after `text`, and the bias of each."""
        if self.dry is None:
            return self.biased, self.biases
        repeating, penalties = self.dry.penalties(text)
        if not len(self.biased):
            return repeating, -penalties
        both, numbers = np.unique(np.concatenate((self.biased, repeating)), return_inverse=True)
        sums = np.zeros(len(both), np.float32)
        np.add.at(sums, numbers, np.concatenate((self.biases, -penalties)))
        return both, sums

    def completed_by(self, before: Sequence[int]) -> list[int]:
        """Tokens that would complete a bad word after the output tokens `before`."""
        words = self.bad_words.get(before[-1], ()) if before else ()
        return [last for others, last in words if tuple(before[-len(others) :]) == others]


class Rules:
    """The rules of all slots. All calls are made by the engine thread."""

    def __init__(self, slots: int, vocab_size: int) -> None:
        self._used = np.zeros(slots, np.bool_)
        self._slots: dict[int, _SlotRules] = {}
        self._texts: dict[int, Repetitions] = {}
        """Of slots with a penalty for repetitions, the text before their newest step's drafts."""
        self._vocab_size = vocab_size
        self._every = _mask(np.arange(vocab_size), vocab_size)

    def reset(self) -> None:
        """Forget the rules of all slots."""
        self._used[:] = False
        self._slots.clear()
        self._texts.clear()

    def free(self, slot: int) -> None:
        """The slot's sequence has ended."""
        self._texts.pop(slot, None)

    def set(self, new: NewSlot) -> None:
        """Take over the rules of a new sequence, in which `fault_in` has found nothing wrong."""
        asked = new.sampling.HasField("rules")
        self._used[new.slot] = asked
        self._slots.pop(new.slot, None)
        self._texts.pop(new.slot, None)
        if asked and new.forked_tokens:
            self._slots[new.slot] = self._slots[new.forked_from]
            text = self._texts.get(new.forked_from)
            if text is not None and text.end <= new.forked_tokens:
                self._texts[new.slot] = text
        elif asked:
            self._slots[new.slot] = self._rules_of(new.sampling.rules, new.prompt_length)

    def fault_in(self, new: NewSlot) -> str:
        """What is wrong with the rules of a new sequence; empty if nothing is. See also `problem_in`."""
        if not new.sampling.HasField("rules"):
            return ""
        rules = new.sampling.rules
        if new.candidates or new.pooling:
            return "rules for a beam or an embedding"
        if new.forked_tokens and new.forked_from not in self._slots:
            return "rules, but not forked from a sequence with rules"
        words = (word.tokens for word in (*rules.bad_words, *rules.dry.breakers))
        single = (rules.biased_tokens, rules.allowed_tokens, rules.end_tokens, rules.dry.breaker_tokens)
        for named in (*single, *words):
            if named and max(named) >= self._vocab_size:
                return f"rules: token {max(named)} is not in the vocabulary of {self._vocab_size}"
        return ""

    def read(self, samples: SamplePositions, tokens: Tensor) -> TokensRead | None:
        """Begin to read what `add_to` needs to know; None if no row has rules.

        These are the tokens that a bad word of several tokens may begin with, and for the penalty of
        repetitions those that have come since the slot's last step.
        `tokens` [slots, max_model_len + 1]: the batch's, with this step's drafts.
        """
        if not self._slots:
            return None
        used = self._used[samples.row_slots]
        if not used.any():
            return None
        rows, begins = [], []
        firsts = samples.firsts
        for row in np.flatnonzero(used).tolist():
            slot = int(samples.row_slots[row])
            rules, text = self._slots[slot], self._texts.get(slot)
            first, count = int(samples.positions[firsts[row]]), int(samples.counts[row])
            begin = max(rules.output_position, first - rules.longest) if rules.longest else first + count - 1
            if rules.dry is not None:
                begin = min(begin, max(0, first - rules.dry.last_n) if text is None else text.end)
            rows.append(row)
            begins.append(begin)
        return read_tokens(samples, rows, begins, tokens)

    def add_to(self, allowed: Allowed | None, read: TokensRead, samples: SamplePositions) -> Allowed | None:
        """What grammars allow and rules, too; None if there is nothing of either.

        `read`: this step's.
        """
        count = len(samples.slots)
        masks = np.full(count, -1, np.int32) if allowed is None else allowed.masks.copy()
        grammars: Sequence[Int32s] = () if allowed is None else list(allowed.words)
        words, biased = list(grammars), dict[int, _Biased]()
        firsts = samples.firsts
        for row, tokens in zip(read.rows, read.lists(), strict=True):
            slot, first = int(samples.row_slots[row]), int(firsts[row])
            rules = self._slots[slot]
            drafts = int(samples.counts[row]) - 1
            begin = int(samples.positions[first]) + drafts - len(tokens)
            output = max(0, rules.output_position - begin)
            text = self._texts.get(slot, Repetitions(begin))
            for index in range(first, first + 1 + drafts):
                position = int(samples.positions[index])
                if rules.dry is not None:
                    text = rules.dry.after(text, tokens[text.end - begin : position - begin])
                    if index == first:
                        self._texts[slot] = text
                biases = rules.biases_after(text)
                if len(biases[0]):
                    biased[index] = biases
                before = tokens[output : position - begin] if rules.longest else ()
                grammar = words[masks[index]] if masks[index] >= 0 else None
                mask = self._mask(grammar, rules.masks_at(position), rules.completed_by(before))
                if mask is not None:
                    masks[index] = len(words)
                    words.append(mask)
        if not words and not biased:
            return None
        width = max(map(len, words), default=0)
        table = np.zeros((len(words), width), np.int32)
        for line, mask in zip(table, words, strict=True):
            line[: len(mask)] = mask
        return Allowed(masks, table, _biases(biased, count) if biased else None)

    def _mask(self, grammar: Int32s | None, masks: Sequence[Int32s], bad: Sequence[int]) -> Int32s | None:
        """What is left of a grammar's mask [words], or of all tokens; None if no rule says anything."""
        if bad:
            masks = [*masks, ~_mask(np.array(bad), self._vocab_size)]
        if not masks:
            return None
        left = self._every if grammar is None else grammar[: len(self._every)]
        for mask in masks:
            less = left & mask
            if less.any():
                left = less
        return left

    def _rules_of(self, rules: TokenRules, prompt_length: int) -> _SlotRules:
        longer: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        single: list[int] = []
        for word in rules.bad_words:
            *others, last = word.tokens
            if others:
                longer.setdefault(others[-1], []).append((tuple(others), last))
            else:
                single.append(last)
        masks = [_mask(np.array(rules.allowed_tokens), self._vocab_size)] if rules.allowed_tokens else []
        if single:
            masks.append(~_mask(np.array(single), self._vocab_size))
        ends = rules.end_tokens if rules.min_tokens else ()
        return _SlotRules(
            masks=masks,
            before_end=~_mask(np.array(ends), self._vocab_size) if ends else None,
            end_position=prompt_length + rules.min_tokens,
            output_position=prompt_length,
            bad_words=longer,
            longest=max((len(word.tokens) - 1 for word in rules.bad_words), default=0),
            biased=np.array(rules.biased_tokens, np.int32),
            biases=np.array(rules.biases, np.float32),
            dry=Dry.of(rules.dry) if rules.HasField("dry") else None,
        )


def _mask(tokens: NDArray[np.integer], vocab_size: int) -> Int32s:
    """The mask [words] in which the bits of these tokens are set."""
    words = np.zeros(-(-vocab_size // BITS), np.uint32)
    np.bitwise_or.at(words, tokens // BITS, np.uint32(1) << (tokens % BITS).astype(np.uint32))
    return words.view(np.int32)


def _biases(biased: Mapping[int, _Biased], rows: int) -> Biases:
    """The biases of some rows of the logits, by their indices."""
    counts = np.zeros(rows, np.int64)
    for row, (tokens, _) in biased.items():
        counts[row] = len(tokens)
    order = sorted(biased)
    return Biases(
        starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        tokens=np.concatenate([biased[row][0] for row in order]),
        values=np.concatenate([biased[row][1] for row in order]),
    )
