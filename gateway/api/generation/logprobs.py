"""Log probabilities in the shapes of the two APIs.

With `as_ids` tokens are spelled by their ids, as `token_id:N`: vLLM's `return_tokens_as_token_ids`.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from proto.tokenizer_pb2 import TokenText

_NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
LOWEST_LOGPROB = -9999.0
"""Stands for lower ones. JSON has no infinity, and OpenAI's API writes this number."""


def chat_logprobs(tokens: Sequence[TokenText], as_ids: bool = False) -> dict[str, Any]:
    """`choices[].logprobs` of the chat API."""
    content = [
        {**_entry(token, as_ids), "top_logprobs": [_entry(other, as_ids) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token: TokenText, as_ids: bool) -> dict[str, Any]:
    text = _id(token) if as_ids else token.text
    return {"token": text, "logprob": _finite(token.logprob), "bytes": list(token.utf8)}


class CompletionLogprobs:
    """`choices[].logprobs` of the completions API, for one choice whose tokens come in pieces."""

    def __init__(self, offset: int = 0, as_ids: bool = False) -> None:
        """`offset`: characters of the prompt, if the choice begins with it."""
        self._offset, self._as_ids = offset, as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, tokens: Iterable[TokenText]) -> dict[str, list[Any]]:
        """The object for the next tokens. `text_offset`: complete characters before each token."""
        part = _empty()
        for token in tokens:
            _append(part, token, _finite(token.logprob), token.top, self._offset, self._as_ids)
            if not token.unseen:
                self._offset += len(self._decoder.decode(token.utf8))
        return part


def echoed(tokens: Iterable[TokenText], alternatives: int, as_ids: bool = False) -> dict[str, list[Any]]:
    """`choices[].logprobs` for a prompt's tokens, of which more alternatives than these may be known.

    The first token of a prompt has null instead of log probabilities.
    """
    part = _empty()
    for token in tokens:
        if token.rank:
            top = token.top[:alternatives]
            _append(part, token, _finite(token.logprob), top, token.text_offset, as_ids)
        else:
            _append(part, token, None, (), token.text_offset, as_ids)
    return part


def prompt_logprobs(tokens: Iterable[TokenText], alternatives: int) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` as vLLM writes it: for each token of a prompt its own entry and those of the most
    likely tokens in its place, by token id; null for the first token.
    """
    return [_by_id(token, alternatives) if token.rank else None for token in tokens]


def _by_id(token: TokenText, alternatives: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rank, each in ((token.rank, token), *enumerate(token.top[:alternatives], 1)):
        entry = {"logprob": _finite(each.logprob), "rank": rank, "decoded_token": each.text}
        found.setdefault(str(each.token_id), entry)
    return found


def _empty() -> dict[str, list[Any]]:
    return {name: [] for name in _NAMES}


def _append(
    part: dict[str, list[Any]],
    token: TokenText,
    logprob: float | None,
    alternatives: Iterable[TokenText],
    offset: int,
    as_ids: bool,
) -> None:
    """Add a token. `logprob`: None where none is known."""
    spelled = _id if as_ids else _distinct_text
    text = spelled(token)
    top = None if logprob is None else {text: logprob}
    if top is not None:
        for other in alternatives:
            top.setdefault(spelled(other), _finite(other.logprob))
    for name, value in zip(_NAMES, (text, logprob, top, offset), strict=True):
        part[name].append(value)


def joined(parts: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """One object from those of consecutive tokens."""
    return {name: [value for part in parts for value in part[name]] for name in _NAMES}


def _id(token: TokenText) -> str:
    return f"token_id:{token.token_id}"


def _distinct_text(token: TokenText) -> str:
    """The token's text; for a token that is not valid UTF-8 its bytes, as OpenAI's API writes them."""
    try:
        return token.utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.utf8)


def _finite(logprob: float) -> float:
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
