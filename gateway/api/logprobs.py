"""Log probabilities in the shapes of the two APIs."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from proto.tokenizer_pb2 import TokenText

LOWEST_LOGPROB = -9999.0
"""Stands for lower ones. JSON has no infinity, and OpenAI's API writes this number."""


def chat_logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    """`choices[].logprobs` of the chat API."""
    content = [{**_entry(token), "top_logprobs": [_entry(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _entry(token: TokenText) -> dict[str, Any]:
    return {"token": token.text, "logprob": _finite(token.logprob), "bytes": list(token.utf8)}


class CompletionLogprobs:
    """`choices[].logprobs` of the completions API, for one choice whose tokens come in pieces."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, tokens: Iterable[TokenText]) -> dict[str, list[Any]]:
        """The object for the next tokens. `text_offset`: complete characters before each token."""
        texts, logprobs, tops, offsets = [], [], [], []
        for token in tokens:
            text = _distinct_text(token)
            texts.append(text)
            logprobs.append(_finite(token.logprob))
            top = {text: _finite(token.logprob)}
            for other in token.top:
                top.setdefault(_distinct_text(other), _finite(other.logprob))
            tops.append(top)
            offsets.append(self._offset)
            if not token.unseen:
                self._offset += len(self._decoder.decode(token.utf8))
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def joined(parts: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """One object from those of consecutive tokens."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [value for part in parts for value in part[name]] for name in names}


def _distinct_text(token: TokenText) -> str:
    """The token's text; for a token that is not valid UTF-8 its bytes, as OpenAI's API writes them."""
    try:
        return token.utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.utf8)


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
