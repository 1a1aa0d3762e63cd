"""One sequence of a request: its tokens and their text."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from proto import arrays
from proto.sampling_pb2 import NOT_FINISHED, STOP, FinishReason
from tokenizer_svc.answers.detokenizer import Detokenizer
from tokenizer_svc.answers.stops import StopMatcher


class Gain(NamedTuple):
    """What new tokens add to a sequence."""

    token_ids: Sequence[int]
    """The tokens up to the last one of a stop string, or all."""
    text: str
    finish_reason: FinishReason
    stop_string: str = ""


class SequenceText:
    """Tokens in, text out, for one sequence.

    What text has been delivered after a token depends on the tokens alone, not on how they came: a
    sequence that is taken up again delivers what follows, byte for byte.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        matcher: StopMatcher | None,
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        """`min_tokens`: tokens within which no stop string ends it.

        `include_stop`: its text contains that of a stop token.
        """
        self._min_tokens, self._include_stop = min_tokens, include_stop
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._delivered_before = 0
        self.packed = bytearray()
        """All tokens so far: int32, little-endian, packed."""
        self.finished = False

    def add(self, packed: bytes, finish_reason: FinishReason) -> Gain:
        """Take new tokens. With a `finish_reason` of STOP the last of them is a stop token."""
        tokens = arrays.unpack(packed)
        spoken = tokens[:-1] if finish_reason == STOP and not self._include_stop else tokens
        if self._matcher is None:
            text, used = self._detokenizer.add(spoken), len(spoken)
        else:
            text, used = self._match(self._matcher, spoken)
        if self._matcher is not None and self._matcher.found:
            self.packed += packed[: 4 * used]
            return self._end(tokens[:used], text, STOP, self._matcher.found)
        self.packed += packed
        if finish_reason == NOT_FINISHED:
            return Gain(tokens, self._new(text), NOT_FINISHED)
        rest = self._detokenizer.finish()
        if self._matcher is not None:
            rest = self._matcher.add(rest, len(self.packed) // 4 > self._min_tokens)
            if not self._matcher.found:
                rest += self._matcher.finish()
        found = self._matcher.found if self._matcher is not None else ""
        return self._end(tokens, text + rest, STOP if found else finish_reason, found)

    def resume(self, token_ids: Sequence[int], text_length: int, stop_tokens: Collection[int]) -> Gain:
        """Continue a sequence that has delivered `token_ids` and `text_length` characters before.

        The gain has no tokens: only text that was not delivered, and an end if there is one already.
        """
        self._delivered_before = text_length
        ended = bool(token_ids) and token_ids[-1] in stop_tokens
        gain = self.add(arrays.pack(token_ids), STOP if ended else NOT_FINISHED)
        return Gain((), gain.text, gain.finish_reason, gain.stop_string)

    def _match(self, matcher: StopMatcher, tokens: Sequence[int]) -> tuple[str, int]:
        """The text of `tokens` up to a stop string, and how many tokens it took."""
        parts, before = [], len(self.packed) // 4
        for count, token in enumerate(tokens, start=1):
            parts.append(matcher.add(self._detokenizer.add((token,)), before + count > self._min_tokens))
            if matcher.found:
                return "".join(parts), count
        return "".join(parts), len(tokens)

    def _end(self, tokens: Sequence[int], text: str, reason: FinishReason, stop_string: str) -> Gain:
        self.finished = True
        return Gain(tokens, self._new(text), reason, stop_string)

    def _new(self, text: str) -> str:
        """The part of `text` that was not delivered before."""
        if not self._delivered_before:
            return text
        known = min(self._delivered_before, len(text))
        self._delivered_before -= known
        return text[known:]
