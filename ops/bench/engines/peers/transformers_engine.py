"""transformers as an engine of its own: static padded batches, or its continuous batching.

    python -m ops.bench.engines.peers.transformers_engine MODEL DTYPE THREADS KV_TOKENS DEVICE

loads the model, prints `ready`, then answers each line of its standard input, a load as in
`{"batching": "static", "users": 2, "questions": [[[5, 6, 7], 64], ...]}` (prompts and tokens to generate;
the other kind is "continuous"), with one line of JSON: `error` if there was one, or the fields of `Outcome`.
KV_TOKENS is the room of the cache of continuous batching.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    StoppingCriteria,
    logging,
)
from transformers.generation.continuous_batching.utils import WorkloadHints

from ops.bench.load.client import Answer
from ops.bench.load.workload import Question
from ops.bench.rig.accounting import Books, needed, static_batch, tokens

STEP_TOKENS = 512
"""Tokens of a step of continuous batching: what Quire's workers take by default."""
PAGE_TOKENS = 256
"""The page size that transformers chooses by itself."""
PAGES: dict[str, Any] = {
    "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size": PAGE_TOKENS
}
"""How the version that is here is told."""


@dataclass
class Outcome:
    """What came of a load. Answers and tokens are in the order of the questions."""

    answers: list[Answer]
    generated: list[list[int]]
    seconds: float
    books: Books


class Engine:
    """A model in this process."""

    def __init__(self, directory: str, dtype: str, kv_tokens: int, device: str) -> None:
        loaded: Any = AutoModelForCausalLM.from_pretrained
        self.model = loaded(directory, dtype=getattr(torch, dtype), attn_implementation="sdpa")
        self.model.to(device).eval()
        self._kv_tokens = kv_tokens
        self._computed = 0
        self._before_step: Callable[[], None] = lambda: None
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Every position that goes into the model, padding too, is computed."""
        self._computed += (named["input_ids"] if "input_ids" in named else positional[0]).numel()
        self._before_step()

    def static(self, questions: Sequence[Question], users: int) -> Outcome:
        """Batches of `users` one after the other; everybody asks again when the batch has ended."""
        outcome = Outcome([], [], 0.0, Books())
        self._computed = 0
        begun = time.perf_counter()
        for first in range(0, len(questions), users):
            batch = questions[first : first + users]
            times, generated = self._generate(batch)
            sent, *steps = times
            for question, row in zip(batch, generated, strict=True):
                outcome.answers.append(_answer(question, sent, steps[: question.max_tokens]))
                outcome.generated.append(row[: question.max_tokens])
            outcome.books += static_batch(batch)
        outcome.seconds = time.perf_counter() - begun
        if self._computed != outcome.books.computed:
            raise RuntimeError(f"{self._computed} positions computed, {outcome.books.computed} expected")
        return outcome

    @torch.inference_mode()
    def _generate(self, batch: Sequence[Question]) -> tuple[list[float], list[list[int]]]:
        """Times (the beginning, then each step) and all rows' new tokens."""
        times = [time.perf_counter()]
        longest = max(len(tokens(question)) for question in batch)
        rows = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(rows)
        for number, question in enumerate(batch):
            prompt = torch.tensor(tokens(question))
            rows[number, longest - len(prompt) :] = prompt
            mask[number, longest - len(prompt) :] = 1
        steps = max(question.max_tokens for question in batch)
        made = self.model.generate(
            rows.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            generation_config=_greedy(max_new_tokens=steps, min_new_tokens=steps),
            stopping_criteria=[_Clock(times)],
        )
        return times, made[:, longest:].tolist()

    def continuous(self, questions: Sequence[Question], users: int) -> Outcome:
        """A closed loop: who has an answer asks the next question. Tokens count when this thread has them."""
        held: list[int] = []
        used: list[int] = []
        manager = self.model.init_continuous_batching(
            generation_config=_greedy(),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=-(-self._kv_tokens // PAGE_TOKENS),
                max_batch_tokens=STEP_TOKENS,
                **PAGES,
            ),
            workload_hints=WorkloadHints(
                max_prompt_length=max(len(tokens(question)) for question in questions),
                max_generated_length=max(question.max_tokens for question in questions),
                num_requests=users,
            ),
        )

        def note() -> None:
            processor = manager.batch_processor
            held.append(_pages_held(processor.cache) * PAGE_TOKENS)
            used.append(sum(state.position_offset for state in processor.scheduler.active_requests.values()))

        manager.warmup()
        manager.start()
        self._computed, self._before_step = 0, note
        try:
            answers, generated, seconds = _closed_loop(manager, questions, users)
        finally:
            self._before_step = lambda: None
            manager.stop(block=True)
            manager.destroy()
        return Outcome(answers, generated, seconds, Books(needed(questions), self._computed, held, used))


def _pages_held(cache: Any) -> int:
    """By all requests; up to 5.17 transformers calls what allocates them otherwise."""
    if hasattr(cache, "cache_allocators"):
        (pages,) = cache.cache_allocators.values()
    else:
        (pages,) = cache.group_cache_managers
    return sum(map(len, pages.block_table.values()))


def _closed_loop(
    manager: Any, questions: Sequence[Question], users: int
) -> tuple[list[Answer], list[list[int]], float]:
    answers: dict[str, Answer] = {}
    generated: dict[str, list[int]] = {}
    waiting = iter(enumerate(questions))

    def ask() -> None:
        for number, question in waiting:
            prompt = tokens(question)
            answers[str(number)] = Answer(time.perf_counter(), prompt_tokens=len(prompt))
            manager.add_request(
                prompt, request_id=str(number), max_new_tokens=question.max_tokens, streaming=True
            )
            return

    begun = time.perf_counter()
    for _ in range(users):
        ask()
    while len(generated) < len(questions):
        result = manager.get_result(timeout=1)
        now = time.perf_counter()
        if result is None:
            if not manager.is_running():
                raise RuntimeError(f"continuous batching has ended: {manager.background_thread_status}")
            continue
        answer = answers[result.request_id]
        answer.error = str(result.error or "")
        answer.chunks.append(now)
        if result.is_finished():
            answer.ended = now
            answer.output_tokens = len(result.generated_tokens)
            generated[result.request_id] = list(result.generated_tokens)
            ask()
    order = [str(number) for number in range(len(questions))]
    seconds = time.perf_counter() - begun
    return [answers[key] for key in order], [generated[key] for key in order], seconds


def _greedy(**lengths: int) -> GenerationConfig:
    """The best token each time, and no end but the length."""
    return GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, **lengths)


class _Clock(StoppingCriteria):
    """Never stops; notes when each step's tokens are there."""

    def __init__(self, times: list[float]) -> None:
        self._times = times

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self._times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _answer(question: Question, sent: float, chunks: list[float]) -> Answer:
    return Answer(sent, chunks, chunks[-1], len(tokens(question)), len(chunks))


def main() -> None:
    directory, dtype, threads, kv_tokens, device = sys.argv[1:]
    torch.set_num_threads(int(threads))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    engine = Engine(directory, dtype, int(kv_tokens), device)
    print("ready", flush=True)
    for line in sys.stdin:
        load = json.loads(line)
        questions = [Question(prompt, length) for prompt, length in load["questions"]]
        run = {"static": engine.static, "continuous": engine.continuous}[load["batching"]]
        try:
            found = asdict(run(questions, load["users"]))
        except Exception as error:  # whatever the library raises is the load's result
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
