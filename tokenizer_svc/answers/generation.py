"""One request: scheduler messages in, text chunks out, and what was delivered so far."""

from collections.abc import Iterator, Sequence

from proto import arrays
from proto.images_pb2 import PromptImage
from proto.sampling_pb2 import StopConditions
from proto.scheduler_pb2 import GenerateRequest, GenerateResponse, SequenceSoFar, Start, TokenLogprobs
from proto.tokenizer_pb2 import TextChunk, TextRequest, TokenText
from tokenizer_svc.answers.detokenizer import Detokenizer, NoText
from tokenizer_svc.answers.prompt_scores import PromptText, text_of
from tokenizer_svc.answers.sequence import Gain, SequenceText
from tokenizer_svc.answers.stops import StopMatcher, automaton
from tokenizer_svc.formats.formats import Formats, said_in
from tokenizer_svc.model.fingerprint import joined, worker_part
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.rules import stop_tokens

MOST_RESUMED_BYTES = 2**20
"""Most delivered tokens, in bytes, that go to a scheduler in one message with the prompt. A message is up to
4 MiB; 128 sequences of 8,192 tokens come to as much."""


class Generation:
    """The state of one request. It remembers enough to call another scheduler at any time."""

    def __init__(
        self,
        model: TextModel,
        request: TextRequest,
        prompt: list[int],
        formats: Formats,
        fingerprint: str = "",
        predicted: Sequence[int] = (),
        images: Sequence[PromptImage] = (),
    ) -> None:
        """`formats`: the model's. `fingerprint`: the tokenizer's own, see `fingerprint.py`.
        `predicted`: see `Start.predicted_tokens`. `images`: of the prompt."""
        self._request = request
        self._fingerprint = fingerprint
        self._worker = worker_part(request.fingerprint)
        """Fingerprint of the worker that has begun the answer; empty if none has."""
        self._prompt = prompt
        self._images = images
        self._every_token = model.every_token
        self._visible = model.plain_tokens if request.skip_special_tokens else model.every_token
        self._format = None
        if request.HasField("chat"):
            self._format = formats.of(bool(request.chat.tools), prompt, said_in(request.chat))
            if self._format is not None:
                self._format.call_demanded = request.shape.calls.required
                if request.shape.WhichOneof("kind"):
                    self._format.call_bare = False  # no grammar holds for a call without a mark
                if request.skip_special_tokens:
                    self._visible = formats.visible
        self._stops = automaton(request.stop) if request.stop else None
        self._stop_tokens = stop_tokens(model, request)
        self._predicted = arrays.pack(predicted)
        self._scores: PromptText | None = None
        """The prompt, if the client wants its log probabilities."""
        if request.sampling.HasField("prompt_logprobs"):
            # A text is shown as the client wrote it, whatever the answer shows.
            given = "" if request.echo else request.text
            visible = model.plain_tokens if given else self._visible
            self._scores = PromptText(prompt, model.every_token, visible, request.scored_tokens, given)
        self._sequences: dict[int, SequenceText] = {}
        self._sent_prompt = False

    @property
    def finished(self) -> bool:
        """Every sequence has ended."""
        return len(self._sequences) == self._request.n and all(
            one.finished for one in self._sequences.values()
        )

    @property
    def scores_prompt(self) -> bool:
        """Log probabilities of the prompt are wanted."""
        return self._scores is not None

    @property
    def output_tokens(self) -> int:
        """Tokens of all sequences so far."""
        return sum(len(one.packed) // 4 for one in self._sequences.values())

    def opening(self) -> list[GenerateRequest]:
        """The first messages to the scheduler, with what earlier calls have delivered."""
        start, later = self._start(), list[SequenceSoFar]()
        if self.output_tokens * 4 > MOST_RESUMED_BYTES:
            later = list(start.resumed)
            start.more_resumed = len(later)
            start.ClearField("resumed")
        return [GenerateRequest(start=start), *(GenerateRequest(resumed=each) for each in later)]

    def _start(self) -> Start:
        request = self._request
        so_far = [
            SequenceSoFar(
                index=index, tokens=b"" if one.finished else bytes(one.packed), finished=one.finished
            )
            for index, one in sorted(self._sequences.items())
            if one.packed or one.finished
        ]
        scored = 0 if self._scores is None else self._scores.delivered
        return Start(
            request_id=request.request_id,
            prompt_tokens=arrays.pack(self._prompt),
            sampling=request.sampling,
            stop=StopConditions(
                max_tokens=request.max_tokens,
                stop_token_ids=self._stop_tokens,
            ),
            n=request.n,
            cache_salt=request.cache_salt,
            adapter=request.adapter,
            tenant=request.tenant,
            user=request.user,
            priority=request.priority,
            beams=request.beams if request.HasField("beams") else None,
            rolling_context=request.rolling_context,
            predicted_tokens=self._predicted,
            images=self._images,
            resumed=so_far,
            scored_tokens=scored,
            fingerprint=self._worker if so_far or scored > 1 else "",
        )

    def prepare(self) -> None:
        """Make what the first tokens need, before they come."""
        self._sequence(0)

    def resume(self) -> TextChunk | None:
        """Continue what earlier calls of the gateway delivered. Returns a chunk if text is due at once."""
        chunk = TextChunk()
        for so_far in self._request.resumed:
            sequence = self._sequence(so_far.index)
            if so_far.finished:
                sequence.packed += arrays.pack(so_far.token_ids)
                sequence.finished = True
                continue
            gain = sequence.resume(so_far.token_ids, so_far.text_length, self._stop_tokens)
            if gain.text or gain.finish_reason:
                self._add(chunk, so_far.index, gain, ())
        if not chunk.deltas and not self.finished:
            return None
        self._add_prompt(chunk, 0)
        return chunk

    def take(self, response: GenerateResponse) -> tuple[TextChunk | None, list[int]]:
        """A scheduler's message as text (None: nothing to send), and sequences that a stop string ended."""
        chunk, ended = TextChunk(), []
        if response.fingerprint:
            self._worker = response.fingerprint
        for delta in response.deltas[:]:
            sequence = self._sequence(delta.index)
            # The delta was under way when the sequence's stop string was found.
            if sequence.finished:
                continue
            gain = sequence.add(delta.tokens, delta.finish_reason)
            if gain.stop_string and not delta.finish_reason:
                ended.append(delta.index)
            self._add(chunk, delta.index, gain, delta.logprobs)
        if response.HasField("predicted"):
            chunk.predicted.CopyFrom(response.predicted)
        if not self._sent_prompt:
            self._add_prompt(chunk, response.cached_tokens)
        elif not chunk.deltas:
            return None, ended
        return chunk, ended

    def take_prompt(self, response: GenerateResponse) -> Iterator[TextChunk]:
        """The log probabilities of the prompt that a scheduler's message has, before what else it has."""
        if self._scores is None:
            return
        if not self._sent_prompt:
            chunk = TextChunk(prompt_logprobs=self._scores.first())
            self._worker = response.fingerprint or self._worker
            self._add_prompt(chunk, response.cached_tokens)
            yield chunk
        if response.HasField("prompt"):
            for piece in self._scores.pieces(response.prompt):
                yield TextChunk(prompt_logprobs=piece)

    def _sequence(self, index: int) -> SequenceText:
        sequence = self._sequences.get(index)
        if sequence is None:
            include, min_tokens = self._request.include_stop_text, self._request.sampling.rules.min_tokens
            matcher = StopMatcher(self._stops, include) if self._stops else None
            no_text = self._request.no_text
            detokenizer = NoText() if no_text else Detokenizer(self._visible, self._prompt)
            sequence = SequenceText(detokenizer, matcher, min_tokens, include)
            self._sequences[index] = sequence
        return sequence

    def _add_prompt(self, chunk: TextChunk, cached_tokens: int) -> None:
        self._sent_prompt = True
        chunk.prompt.tokens = len(self._prompt)
        if self._request.return_prompt_tokens:
            chunk.prompt.token_ids.extend(self._prompt)
        chunk.prompt.cached_tokens = cached_tokens
        if self._request.echo:
            chunk.prompt.text = text_of(self._prompt, self._visible)
        chunk.prompt.fingerprint = joined(self._fingerprint, self._worker)
        if self._format is not None:
            chunk.prompt.format.CopyFrom(self._format)

    def _add(self, chunk: TextChunk, index: int, gain: Gain, logprobs: Sequence[TokenLogprobs]) -> None:
        token_ids, text, finish_reason, stop_string = gain
        delta = chunk.deltas.add()
        delta.index, delta.text = index, text
        delta.token_ids.extend(token_ids)
        if finish_reason:
            delta.finish_reason, delta.stop_string = finish_reason, stop_string
        if logprobs:  # tokens after a stop string have none
            delta.logprobs.extend(map(self._logprobs, token_ids, logprobs))

    def _logprobs(self, token: int, entry: TokenLogprobs) -> TokenText:
        text = self._every_token.text_of(token, entry.logprob)
        text.unseen = not self._visible[token]
        tokens = arrays.unpack(entry.top_tokens)
        logprobs = arrays.unpack(entry.top_logprobs, arrays.FLOAT32)
        text.top.extend(map(self._every_token.text_of, tokens, logprobs))
        return text
