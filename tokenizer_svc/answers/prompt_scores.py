"""The tokens of a prompt as text, with their log probabilities."""

from collections.abc import Iterator, Sequence

from proto import arrays
from proto.scheduler_pb2 import PromptScores
from proto.tokenizer_pb2 import TokenText
from tokenizer_svc.answers.detokenizer import Detokenizer
from tokenizer_svc.model.token_bytes import TokenBytes

PIECE = 512
"""Tokens that one message delivers at most: with 20 alternatives to each they take half a megabyte."""


class PromptText:
    """The prompt of one request, whose tokens are delivered in order and once."""

    def __init__(
        self,
        prompt: Sequence[int],
        every_token: TokenBytes,
        visible: TokenBytes,
        delivered: int,
        given: str = "",
    ) -> None:
        """`every_token`: the bytes of all tokens; `visible`: of those that the text shows.

        `delivered`: tokens of the prompt, from the first one on, that earlier calls have delivered.
        `given`: the prompt as the client wrote it, which is the text. Tokens that are not `visible` are in it
        if it spells them; the tokenizer has added the others. Empty: the prompt was given as tokens.
        """
        self._prompt, self._every_token, self._visible = prompt, every_token, visible
        self.delivered, self._given = delivered, given
        self._offset = 0
        self._detokenizer = Detokenizer(visible, ())
        for token in prompt[:delivered]:
            self._pass(token)

    def first(self) -> list[TokenText]:
        """The first token, of which there is no log probability; nothing if it has been delivered."""
        if self.delivered:
            return []
        return [self._next(0.0)]

    def pieces(self, scores: PromptScores) -> Iterator[list[TokenText]]:
        """The next tokens, at most `PIECE` at once."""
        logprobs, ranks = arrays.unpack(scores.logprobs, arrays.FLOAT32), arrays.unpack(scores.ranks)
        tokens = arrays.unpack(scores.top_tokens)
        tops = arrays.unpack(scores.top_logprobs, arrays.FLOAT32)
        each = len(tokens) // len(ranks) if ranks else 0
        for begin in range(0, len(ranks), PIECE):
            piece = []
            for place in range(begin, min(begin + PIECE, len(ranks))):
                text = self._next(logprobs[place])
                text.rank = ranks[place]
                some = slice(place * each, (place + 1) * each)
                text.top.extend(map(self._every_token.text_of, tokens[some], tops[some]))
                piece.append(text)
            yield piece

    def _next(self, logprob: float) -> TokenText:
        token = self._prompt[self.delivered]
        text = self._every_token.text_of(token, logprob)
        text.unseen, text.text_offset = not self._visible[token], self._offset
        self._pass(token)
        self.delivered += 1
        return text

    def _pass(self, token: int) -> None:
        self._offset += len(self._detokenizer.add((token,)))
        if self._given and not self._visible[token]:
            spelled = self._every_token[token].decode(errors="replace")
            self._offset += len(spelled) * self._given.startswith(spelled, self._offset)


def text_of(prompt: Sequence[int], visible: TokenBytes) -> str:
    """The text of a prompt that was given as tokens, without a character that it leaves incomplete."""
    return Detokenizer(visible, ()).add(prompt)
