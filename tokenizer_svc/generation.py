"""One request: scheduler messages in, text chunks out, and what was delivered so far."""

from collections.abc import Sequence

from proto import arrays
from proto.sampling_pb2 import StopConditions
from proto.scheduler_pb2 import GenerateResponse, SequenceSoFar, Start, TokenLogprobs
from proto.tokenizer_pb2 import TextChunk, TextRequest, TokenText
from tokenizer_svc.detokenizer import Detokenizer
from tokenizer_svc.sequence import Gain, SequenceText
from tokenizer_svc.stops import StopMatcher, automaton
from tokenizer_svc.tokenizer import TextModel


class Generation:
    """The state of one request. It remembers enough to call another scheduler at any time."""

    def __init__(self, model: TextModel, request: TextRequest, prompt: Sequence[int]) -> None:
        self._request = request
        self._prompt = prompt
        self._every_token = model.every_token
        self._visible = model.plain_tokens if request.skip_special_tokens else model.every_token
        self._stops = automaton(request.stop) if request.stop else None
        ends = () if request.ignore_eos else model.end_tokens
        # The text may hide special tokens; one that is named as a stop string stops the answer all the same.
        named = [model.special_tokens[text] for text in request.stop if text in model.special_tokens]
        self._stop_tokens = sorted({*ends, *request.stop_token_ids, *named})
        self._sequences: dict[int, SequenceText] = {}
        self._sent_prompt = False

    @property
    def finished(self) -> bool:
        """Every sequence has ended."""
        return len(self._sequences) == self._request.n and all(
            one.finished for one in self._sequences.values()
        )

    @property
    def output_tokens(self) -> int:
        """Tokens of all sequences so far."""
        return sum(len(one.packed) // 4 for one in self._sequences.values())

    def start(self) -> Start:
        """The first message to the scheduler, with what earlier calls have delivered."""
        request = self._request
        return Start(
            request_id=request.request_id,
            prompt_tokens=arrays.pack(self._prompt),
            sampling=request.sampling,
            stop=StopConditions(
                max_tokens=request.max_tokens,
                stop_token_ids=self._stop_tokens,
                cut_to_fit="max_tokens" in request.left_out,
            ),
            n=request.n,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            priority=request.priority,
            beams=request.beams if request.HasField("beams") else None,
            rolling_context=request.rolling_context,
            resumed=[
                SequenceSoFar(index=index, tokens=bytes(one.packed), finished=one.finished)
                for index, one in sorted(self._sequences.items())
                if one.packed or one.finished
            ],
        )

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
        for delta in response.deltas[:]:
            sequence = self._sequence(delta.index)
            # The delta was under way when the sequence's stop string was found.
            if sequence.finished:
                continue
            gain = sequence.add(delta.tokens, delta.finish_reason)
            if gain.stop_string and not delta.finish_reason:
                ended.append(delta.index)
            self._add(chunk, delta.index, gain, delta.logprobs)
        if not self._sent_prompt:
            self._add_prompt(chunk, response.cached_tokens)
        elif not chunk.deltas:
            return None, ended
        return chunk, ended

    def _sequence(self, index: int) -> SequenceText:
        sequence = self._sequences.get(index)
        if sequence is None:
            matcher = StopMatcher(self._stops) if self._stops else None
            sequence = SequenceText(Detokenizer(self._visible, self._prompt), matcher)
            self._sequences[index] = sequence
        return sequence

    def _add_prompt(self, chunk: TextChunk, cached_tokens: int) -> None:
        self._sent_prompt = True
        chunk.prompt.token_ids.extend(self._prompt)
        chunk.prompt.cached_tokens = cached_tokens

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
        text = self._token_text(token, entry.logprob)
        text.unseen = not self._visible[token]
        tokens = arrays.unpack(entry.top_tokens)
        logprobs = arrays.unpack(entry.top_logprobs, arrays.FLOAT32)
        text.top.extend(map(self._token_text, tokens, logprobs))
        return text

    def _token_text(self, token: int, logprob: float) -> TokenText:
        data = self._every_token[token]
        return TokenText(token_id=token, text=data.decode(errors="replace"), utf8=data, logprob=logprob)
