"""What a request may cost: its body against the limits of its caller, before anything enters a stream."""

from gateway.api.common.request_schema import RequestBody
from gateway.api.generation.schema import GenerationBody
from gateway.errors import BadRequest
from ops.runtime.limits import Limits


def check(body: RequestBody, limits: Limits) -> None:
    """Raise `BadRequest`, naming parameter and limit, if the body asks for more than is allowed.

    More tokens are no error: an answer has as many as are allowed, see `most_tokens_of`.
    """
    lowest, highest = limits.priority
    if "priority" in body.model_fields_set and not lowest <= body.priority <= highest:
        raise _refusal("priority", f"'priority' must be in [{lowest}, {highest}].")
    if limits.seconds and body.timeout is not None and body.timeout > limits.seconds:
        raise _refusal("timeout", f"'timeout' must be at most {limits.seconds:g}.")
    if isinstance(body, GenerationBody):
        _check_answer(body, limits)


def priority_of(body: RequestBody, limits: Limits, late: bool = False) -> int:
    """The body's priority. One that the body leaves out is the allowed one nearest to the default.

    `late`: or the last one that is allowed.
    """
    lowest, highest = limits.priority
    if late and "priority" not in body.model_fields_set:
        return highest
    return min(max(body.priority, lowest), highest)


def seconds_of(body: RequestBody, limits: Limits) -> float | None:
    """Seconds that the answer may take; None: any number."""
    return limits.seconds or None if body.timeout is None else body.timeout


def most_tokens_of(body: GenerationBody, limits: Limits) -> int:
    """Tokens that each sequence may have at most, whether or not the body says how many it wants."""
    return limits.answer_tokens // body.all_sequences


def asked_tokens_of(body: GenerationBody, limits: Limits) -> int:
    """Tokens of the answer that the body asks for; 0 if it does not say."""
    return 0 if body.limit is None else min(body.limit, most_tokens_of(body, limits)) * body.all_sequences


def _check_answer(body: GenerationBody, limits: Limits) -> None:
    for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
        wanted = getattr(body, name, None)
        if wanted is None or isinstance(wanted, bool) or limits.logprobs < 0:
            continue
        if not 0 <= wanted <= limits.logprobs:
            raise _refusal(name, f"'{name}' must be in [0, {limits.logprobs}].")
    sequences, name = body.all_sequences, body.sequences_name
    if sequences > min(limits.sequences, limits.answer_tokens):
        most = min(limits.sequences, limits.answer_tokens)
        times = f"Prompts times '{name}'" if body.prompts > 1 else f"'{name}'"
        raise _refusal(name, f"{times} must be at most {most}.")


def _refusal(param: str, message: str) -> BadRequest:
    return BadRequest(message, param=param, code="invalid_value")
