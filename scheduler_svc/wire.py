"""Between the core's values and the messages of worker.proto and scheduler.proto.

Arrays are little-endian on the wire whatever the machine is.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from proto.sampling_pb2 import FinishReason, Pooling, SamplingParams
from proto.scheduler_pb2 import GenerateResponse, TokenLogprobs
from proto.worker_pb2 import NewSlot, StepPlan, StepResult, WorkerReady
from scheduler_svc.core import plan as core
from scheduler_svc.core.beam_search import Candidate
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.rolling import prompt_in

Logprobs = Mapping[int, TokenLogprobs]
"""By index into a result's tokens."""


def pack(numbers: Sequence[int]) -> bytes:
    """int32[]."""
    return struct.pack(f"<{len(numbers)}i", *numbers)


def tokens_from(packed: bytes) -> "array[int]":
    """int32[] as an array. Raises `ValueError` if the bytes are not a whole number of int32."""
    tokens = array("i")
    tokens.frombytes(packed)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def tokens_to(tokens: "array[int]") -> bytes:
    """An array as int32[]."""
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return tokens.tobytes()


def limits_from(ready: WorkerReady) -> WorkerLimits:
    """What a worker has to offer. Raises `WorkerFault` if that is nothing."""
    try:
        return WorkerLimits(
            num_blocks=ready.num_blocks,
            block_size=ready.block_size,
            max_slots=ready.max_slots,
            max_model_len=ready.max_model_len,
            max_step_tokens=ready.max_step_tokens,
            vocab_size=ready.vocab_size,
            host_blocks=ready.host_blocks,
            swap_block_us=ready.swap_block_us,
            token_us=ready.token_us,
            window=ready.window,
            can_draft=ready.can_draft,
            embedding_size=ready.embedding_size,
        )
    except ValueError as error:
        raise WorkerFault(f"a worker with nothing to offer: {error}") from error


def plan_to(plan: core.StepPlan) -> StepPlan:
    """A plan as a message: a few hundred bytes for tens of decodes, whatever their lengths."""
    return StepPlan(
        step=plan.step,
        freed_slots=pack(plan.freed_slots),
        new_slots=[_new_slot_to(new) for new in plan.new_slots],
        block_slots=pack(plan.table_appends.slots),
        block_ids=pack(plan.table_appends.blocks),
        row_slots=pack(plan.rows.slots),
        row_starts=pack(plan.rows.starts),
        row_counts=pack(plan.rows.counts),
        row_samples=bytes(plan.rows.samples),
        draft_tokens=pack(plan.draft_tokens),
        cut_slots=pack(plan.table_cuts.slots),
        cut_blocks=pack(plan.table_cuts.lengths),
        copy_sources=pack(plan.copies.sources),
        copy_targets=pack(plan.copies.targets),
        swap_out_blocks=pack(plan.swap_out.blocks),
        swap_out_slots=pack(plan.swap_out.host_slots),
        swap_in_slots=pack(plan.swap_in.host_slots),
        swap_in_blocks=pack(plan.swap_in.blocks),
        given_slots=pack(plan.given_tokens.slots),
        given_tokens=pack(plan.given_tokens.tokens),
    )


def _new_slot_to(new: core.NewSlot) -> NewSlot:
    request = new.request
    assert isinstance(request.sampling, SamplingParams)
    return NewSlot(
        slot=new.slot,
        tokens=tokens_to(new.tokens),
        prompt_length=prompt_in(len(request.prompt), new.dropped_tokens),
        dropped_tokens=new.dropped_tokens,
        block_ids=pack(new.block_ids),
        sampling=request.sampling,
        sequence_index=new.sequence_index,
        traceparent=request.traceparent,
        forked_tokens=new.forked_tokens,
        forked_from=max(new.forked_from, 0),
        candidates=request.candidates,
        pooling=_POOLING[request.pooling],
    )


def result_from(message: StepResult) -> tuple[core.StepResult, Logprobs]:
    """A worker's answer, and the log probabilities that came with it. Raises `WorkerFault`."""
    try:
        tokens = _ints(message.tokens)
        logprobs = _logprobs_from(message) if message.logprob_entries else {}
        candidates = _candidates_from(message) if message.candidate_entries else {}
        embeddings = _embeddings_from(message) if message.embedded_rows else {}
    except (struct.error, ValueError, IndexError) as error:
        raise WorkerFault(f"step {message.step}: malformed arrays: {error}") from error
    errors = {error.row: error.message for error in message.errors}
    result = core.StepResult(message.step, tokens, errors, candidates, embeddings, message.duration_us)
    return result, logprobs


def _logprobs_from(message: StepResult) -> dict[int, TokenLogprobs]:
    entries = _ints(message.logprob_entries)
    chosen = struct.unpack(f"<{len(entries)}f", message.logprobs)
    counts = _ints(message.top_counts)
    size = 4 * sum(counts)
    if len(counts) != len(entries) or not size == len(message.top_tokens) == len(message.top_logprobs):
        raise ValueError("alternatives and their counts")
    found, start = {}, 0
    for entry, logprob, count in zip(entries, chosen, counts, strict=True):
        end = start + 4 * count
        found[entry] = TokenLogprobs(
            logprob=logprob,
            top_tokens=message.top_tokens[start:end],
            top_logprobs=message.top_logprobs[start:end],
        )
        start = end
    return found


def _candidates_from(message: StepResult) -> dict[int, list[Candidate]]:
    entries, counts = _ints(message.candidate_entries), _ints(message.candidate_counts)
    tokens, logprobs = _ints(message.candidate_tokens), message.candidate_logprobs
    numbers = struct.unpack(f"<{len(tokens)}f", logprobs)
    if len(entries) != len(counts) or sum(counts) != len(tokens):
        raise ValueError("candidates and their counts")
    every = map(Candidate, tokens, numbers)
    return {entry: list(islice(every, count)) for entry, count in zip(entries, counts, strict=True)}


def _embeddings_from(message: StepResult) -> dict[int, bytes]:
    rows = _ints(message.embedded_rows)
    size, rest = divmod(len(message.embeddings), len(rows))
    if rest or not size or size % 4:
        raise ValueError("embeddings and their rows")
    return {row: message.embeddings[size * at : size * (at + 1)] for at, row in enumerate(rows)}


def response_to(gains: Iterable[core.Gain], logprobs: Logprobs) -> GenerateResponse:
    """What the sequences of a request gained, for the caller; the tokens of one are side by side."""
    response = GenerateResponse()
    index = -1
    for _, sequence_index, token, finish, entry in gains:
        if index != sequence_index:
            index = sequence_index
            delta = response.deltas.add()
            delta.index = index
        if finish:
            delta.finish_reason = _FINISH[finish]
        if token >= 0:
            delta.tokens += _INT.pack(token)
            if logprobs and (found := logprobs.get(entry)) is not None:
                delta.logprobs.append(found)
    return response


_POOLING = (Pooling.NO_POOLING, Pooling.MEAN, Pooling.LAST)
_INT = struct.Struct("<i")
_FINISH = (FinishReason.NOT_FINISHED, FinishReason.STOP, FinishReason.LENGTH)


def _ints(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}i", packed)
