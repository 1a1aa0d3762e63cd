"""Between the core's values and the messages of worker.proto and scheduler.proto.

The arrays of a plan need no code here: `arrays.fill` finds them in the core's `StepPlan` by their names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, islice

from proto import arrays
from proto import worker_pb2 as worker
from proto.images_pb2 import ImageFile, PromptImage
from proto.sampling_pb2 import FinishReason, Grammar, Pooling, SamplingParams
from proto.scheduler_pb2 import GenerateResponse, PromptScores, TokenLogprobs
from proto.worker_pb2 import NewGrammar, NewSlot, StepPlan, StepResult, WorkerReady
from scheduler_svc.core import plan as core
from scheduler_svc.core.beam_search import Candidate
from scheduler_svc.core.draft_state import Forced
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.images import Image
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.rolling import prompt_in

Logprobs = Mapping[int, TokenLogprobs]
"""By index into a result's tokens."""


def limits_from(ready: WorkerReady) -> WorkerLimits:
    """What a worker has to offer. Raises `WorkerFault` if that is nothing."""
    try:
        told = {each.name: getattr(ready, each.name) for each in fields(WorkerLimits)}
        adapters = {each.name: each.fingerprint for each in ready.adapters}
        return WorkerLimits(**told | {"adapters": adapters})
    except ValueError as error:
        raise WorkerFault(f"a worker with nothing to offer: {error}") from error


def plan_to(plan: core.StepPlan) -> StepPlan:
    """A plan as a message: a few kilobytes for hundreds of decodes, whatever their lengths."""
    message = StepPlan(
        step=plan.step,
        new_grammars=[
            NewGrammar(number=number, grammar=Grammar.FromString(packed))
            for number, packed in plan.new_grammars
        ],
        new_slots=[_new_slot_to(new) for new in plan.new_slots],
    )
    arrays.fill(message, plan)
    return message


def _new_slot_to(new: core.NewSlot) -> NewSlot:
    request = new.request
    sampling = request.sampling
    assert isinstance(sampling, SamplingParams)
    prompt = prompt_in(len(request.prompt), new.dropped_tokens)
    dropped_output = new.dropped_tokens - (len(request.prompt) - prompt)
    if sampling.HasField("rules") and (new.forked_tokens or dropped_output):
        whole, sampling = sampling, SamplingParams()
        sampling.CopyFrom(whole)
        if new.forked_tokens:  # the worker has them with the parent
            sampling.rules.Clear()
            sampling.rules.SetInParent()
        else:  # the worker counts from the end of what is left of the prompt
            sampling.rules.min_tokens = max(0, sampling.rules.min_tokens - dropped_output)
    return NewSlot(
        slot=new.slot,
        tokens=arrays.pack(new.tokens),
        prompt_length=prompt,
        dropped_tokens=new.dropped_tokens,
        block_ids=arrays.pack(new.block_ids),
        sampling=sampling,
        sequence_index=new.sequence_index,
        traceparent=request.traceparent,
        forked_tokens=new.forked_tokens,
        forked_from=max(new.forked_from, 0),
        candidates=request.candidates,
        pooling=_POOLING[request.pooling],
        grammar=new.grammar,
        second_segment=request.second_segment,
        adapter=request.adapter,
        images=map(_image_to, new.images),
        sight=new.sight,
    )


def _image_to(image: Image) -> PromptImage:
    return PromptImage(
        file=ImageFile(name=image.name, digest=image.digest),
        position=image.position,
        tokens=image.tokens,
        rows=image.rows,
        columns=image.columns,
    )


def result_from(message: StepResult) -> tuple[core.StepResult, Logprobs]:
    """A worker's answer, and the log probabilities that came with it. Raises `WorkerFault`."""
    try:
        arrays.check(message)
        tokens = arrays.unpack(message.tokens).tolist()
        logprobs = _logprobs_from(message.logprobs) if message.HasField("logprobs") else {}
        candidates = _candidates_from(message.candidates) if message.HasField("candidates") else {}
        embeddings = _embeddings_from(message.embeddings) if message.HasField("embeddings") else {}
        scores = _scores_from(message.prompt_logprobs) if message.HasField("prompt_logprobs") else {}
        forced = _forced_from(message.forced) if message.HasField("forced") else {}
    except ValueError as error:
        raise WorkerFault(f"step {message.step}: malformed arrays: {error}") from error
    errors = {error.row: error.message for error in message.errors}
    at_limits = [error.row for error in message.errors if error.grammar]
    result = core.StepResult(
        step=message.step,
        tokens=tokens,
        errors=errors,
        candidates=candidates,
        embeddings=embeddings,
        duration_us=message.duration_us,
        prompt_scores=scores,
        forced=forced,
        at_limits=at_limits,
    )
    return result, logprobs


def _logprobs_from(message: worker.Logprobs) -> dict[int, TokenLogprobs]:
    entries, counts = arrays.unpack(message.entries), arrays.unpack(message.top_counts)
    chosen = arrays.unpack(message.logprobs, arrays.FLOAT32)
    tokens, logprobs = message.top.tokens, message.top.logprobs
    _check_counts(counts, len(tokens) // 4, "alternatives")
    found, start = {}, 0
    for entry, logprob, count in zip(entries, chosen, counts, strict=True):
        end = start + 4 * count
        found[entry] = TokenLogprobs(
            logprob=logprob, top_tokens=tokens[start:end], top_logprobs=logprobs[start:end]
        )
        start = end
    return found


def _candidates_from(message: worker.Candidates) -> dict[int, list[Candidate]]:
    entries, counts = arrays.unpack(message.entries), arrays.unpack(message.counts)
    tokens, logprobs = arrays.unpack(message.top.tokens), arrays.unpack(message.top.logprobs, arrays.FLOAT32)
    _check_counts(counts, len(tokens), "candidates")
    every = map(Candidate, tokens, logprobs)
    return {entry: list(islice(every, count)) for entry, count in zip(entries, counts, strict=True)}


def _scores_from(message: worker.PromptLogprobs) -> dict[int, core.PromptScores]:
    """By row. The numbers stay packed: four bytes each."""
    rows, counts = arrays.unpack(message.rows.rows), arrays.unpack(message.rows.counts)
    alternatives = arrays.unpack(message.rows.alternatives)
    logprobs, ranks, top = message.logprobs, message.ranks, message.top
    tops = [count * each for count, each in zip(counts, alternatives, strict=True)]
    for numbers, lines in ((logprobs, counts), (ranks, counts), (top.tokens, tops)):
        _check_counts(lines, len(numbers) // 4, "numbers of prompts")
    found, start, top_start = {}, 0, 0
    for row, count, some in zip(rows, counts, tops, strict=True):
        end, top_end = start + 4 * count, top_start + 4 * some
        values = PromptScores(
            logprobs=logprobs[start:end],
            ranks=ranks[start:end],
            top_tokens=top.tokens[top_start:top_end],
            top_logprobs=top.logprobs[top_start:top_end],
        )
        found[row] = core.PromptScores(count, values)
        start, top_start = end, top_end
    return found


def _forced_from(message: worker.Forced) -> dict[int, Forced]:
    """By row."""
    rows, starts = arrays.unpack(message.runs.rows), arrays.unpack(message.runs.starts)
    counts, tokens = arrays.unpack(message.runs.counts), iter(arrays.unpack(message.tokens))
    _check_counts(counts, len(message.tokens) // 4, "forced tokens")
    return {
        row: Forced(start, list(islice(tokens, count)))
        for row, start, count in zip(rows, starts, counts, strict=True)
    }


def _check_counts(counts: Sequence[int], lines: int, name: str) -> None:
    """Raise `ValueError` unless the counts divide up that many lines."""
    if sum(counts) != lines or min(counts, default=0) < 0:
        raise ValueError(f"{lines} {name} where their counts add up to {sum(counts)}")


def _embeddings_from(message: worker.Embeddings) -> dict[int, bytes]:
    """Vectors, packed, by row."""
    rows, vectors = arrays.unpack(message.rows), message.vectors
    if not rows:
        return {}
    counts = arrays.unpack(message.counts) if message.counts else [1] * len(rows)
    if len(counts) != len(rows) or min(counts) < 1:
        raise ValueError("counts of vectors")
    size, rest = divmod(len(vectors), sum(counts))
    if rest or not size or size % 4:
        raise ValueError("embeddings and their rows")
    ends = accumulate(size * count for count in counts)
    return {
        row: vectors[end - size * count : end] for row, count, end in zip(rows, counts, ends, strict=True)
    }


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
            delta.tokens += arrays.pack_one(token)
            if logprobs and (found := logprobs.get(entry)) is not None:
                delta.logprobs.append(found)
    return response


_POOLING = (Pooling.NO_POOLING, Pooling.MEAN, Pooling.LAST, Pooling.CLASSIFY, Pooling.CLS, Pooling.ALL)
_FINISH = (FinishReason.NOT_FINISHED, FinishReason.STOP, FinishReason.LENGTH)
