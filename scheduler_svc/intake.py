"""Makes the core's requests of messages, and checks what does not depend on a worker.

Lengths and token ids depend on the workers and are checked in the core.
"""

from array import array
from hashlib import sha256
from math import inf

from ops.runtime.image_store import MAX_IMAGES
from proto import arrays
from proto.sampling import MAX_SEQUENCES, greedy, problem_in
from proto.sampling_pb2 import BeamSearch as BeamSearchMessage
from proto.sampling_pb2 import SamplingParams, StopConditions
from proto.scheduler_pb2 import EmbedTokensRequest, SequenceSoFar, Start
from scheduler_svc.core.alternatives import FEW
from scheduler_svc.core.beam_search import BeamSearch, EarlyStopping
from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.core.images import Image
from scheduler_svc.core.request import Pooling, Request, SoFar

NOTHING_DRAWN = greedy()
"""For a text that is embedded or classified: nothing is sampled."""


def request_from(start: Start, traceparent: str, deadline: float = inf) -> Request:
    """The request as the core takes it. `deadline`: of the call, in seconds on the monotonic clock.

    Raises `RequestRefused`, naming the field.
    """
    prompt = _tokens_in(start.prompt_tokens, "prompt_tokens")
    _require(1 <= start.n <= MAX_SEQUENCES, "n", f"must be in [1, {MAX_SEQUENCES}]")
    _check(start.sampling)
    _check(start.stop)
    beams = _beams_from(start) if start.HasField("beams") else None
    sampling, grammar = start.sampling, b""
    if sampling.HasField("grammar"):  # it goes to a worker once, and the parameters with every sequence
        grammar = sampling.grammar.SerializeToString(deterministic=True)
        sampling = SamplingParams()
        sampling.CopyFrom(start.sampling)
        sampling.ClearField("grammar")
    scores = start.sampling.HasField("prompt_logprobs")
    told = start.scored_tokens == len(prompt) or not any(so_far.tokens for so_far in start.resumed)
    _require(start.scored_tokens <= len(prompt), "scored_tokens", "more than the prompt has")
    _require(told or not scores, "scored_tokens", "the answer has begun before its prompt was delivered")
    return Request(
        request_id=start.request_id,
        prompt=prompt,
        max_tokens=start.stop.max_tokens,
        stop_token_ids=frozenset(start.stop.stop_token_ids),
        n=start.n,
        beams=beams,
        salt=start.cache_salt,
        adapter=start.adapter,
        tenant=start.tenant,
        user=start.user,
        priority=start.priority,
        deadline=deadline,
        sampling=sampling,
        grammar=grammar,
        plan_bytes=len(grammar) + sampling.rules.ByteSize() + sum(image.ByteSize() for image in start.images),
        traceparent=traceparent,
        rolling=start.rolling_context,
        scores_prompt=scores,
        alternatives=_beyond_few(sampling.logprobs),
        prompt_alternatives=_beyond_few(sampling.prompt_logprobs),
        scored_tokens=start.scored_tokens,
        predicted=_tokens_in(start.predicted_tokens, "predicted_tokens") if start.predicted_tokens else None,
        fingerprint=start.fingerprint,
        images=_images_from(start, len(prompt)) if start.images else (),
        resumed=_resumed_from(start),
    )


def embedding_from(asked: EmbedTokensRequest, traceparent: str, deadline: float = inf) -> Request:
    """A text to be embedded or classified, as the core takes it; `deadline`, errors: see `request_from`."""
    ways = {int(each) for each in Pooling if each}
    _require(int(asked.pooling) in ways, "pooling", "must be MEAN, LAST, CLASSIFY, CLS or ALL")
    pooling = Pooling(asked.pooling)
    shortened = pooling not in (Pooling.CLASSIFY, Pooling.ALL)
    _require(not asked.dimensions or shortened, "dimensions", "logits and tokens' vectors have all")
    prompt = _tokens_in(asked.tokens, "tokens")
    _require(asked.second_segment < len(prompt), "prompt", "second_segment is behind the text's end")
    return Request(
        request_id=asked.request_id,
        prompt=prompt,
        salt=asked.cache_salt,
        adapter=asked.adapter,
        tenant=asked.tenant,
        user=asked.user,
        priority=asked.priority,
        deadline=deadline,
        sampling=NOTHING_DRAWN,
        traceparent=traceparent,
        pooling=pooling,
        second_segment=asked.second_segment,
        dimensions=asked.dimensions,
    )


def _images_from(start: Start, prompt: int) -> tuple[Image, ...]:
    """`prompt`: tokens that it has."""
    _require(not start.rolling_context, "rolling_context", "a prompt with images cannot be forgotten in part")
    _require(len(start.images) <= MAX_IMAGES, "images", f"more than {MAX_IMAGES}")
    images, end = [], 0
    for one in start.images:
        image = Image(one.position, one.tokens, one.rows, one.columns, one.file.digest, one.file.name)
        _require(image.position >= end, "images", "are not in order, or overlap")
        end = image.end
        _require(image.position < end <= prompt, "images", "one has no token, or goes beyond the prompt")
        _require(0 < image.rows * image.columns <= image.tokens, "images", "rows, columns and tokens differ")
        _require(len(image.digest) == sha256().digest_size, "images", "digest is not a SHA-256")
        images.append(image)
    return tuple(images)


def _beyond_few(alternatives: int) -> int:
    return alternatives if alternatives > FEW else 0


def _tokens_in(packed: bytes, name: str) -> "array[int]":
    """The tokens of a prompt. `name`: the message's field that has them."""
    try:
        tokens = arrays.unpack(packed)
    except ValueError as error:
        raise RequestRefused("prompt", f"{name} is not a list of int32") from error
    _require(len(tokens) > 0, "prompt", "the prompt is empty")
    return tokens


def _beams_from(start: Start) -> BeamSearch:
    beams = start.beams
    _check(beams)
    _require(start.n <= beams.beam_width, "n", "must be at most beam_width")
    known = [int(each) for each in EarlyStopping]
    _require(int(beams.early_stopping) in known, "early_stopping", "is not a known value")
    _require(start.sampling.temperature == 0, "temperature", "must be 0: a beam search draws nothing")
    whole = not start.resumed or sum(so_far.finished for so_far in start.resumed) == start.n
    _require(whole, "resumed", "a beam search delivers all or nothing")
    return BeamSearch(beams.beam_width, beams.length_penalty, EarlyStopping(beams.early_stopping))


def _resumed_from(start: Start) -> tuple[SoFar, ...]:
    indices = {so_far.index for so_far in start.resumed}
    _require(len(indices) == len(start.resumed), "resumed", "names a sequence twice")
    _require(all(index < start.n for index in indices), "resumed", "names a sequence that does not exist")
    return tuple(map(_so_far_from, start.resumed))


def _so_far_from(so_far: SequenceSoFar) -> SoFar:
    try:
        return SoFar(so_far.index, arrays.unpack(so_far.tokens), so_far.finished)
    except ValueError as error:
        raise RequestRefused("resumed", "tokens is not a list of int32") from error


def _check(declared: SamplingParams | StopConditions | BeamSearchMessage) -> None:
    if problem := problem_in(declared):
        raise RequestRefused(*problem)


def _require(holds: bool, param: str, message: str) -> None:
    if not holds:
        raise RequestRefused(param, message)
