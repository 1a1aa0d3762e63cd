"""Models with recurrent layers beside transformers: milliseconds between tokens, and of a prompt.

`python -m ops.bench.recurrent` makes models of the sizes of Qwen 3.5 with 0.8 billion weights and LFM2 with
350 million, but for a vocabulary of 4,096, with random weights in bfloat16. Quire is the scheduler's core and
the worker in this process. transformers' side is a static batch with its own cache, without a scheduler. The
two take turns.

Then one user chats: the median time to the first token of a turn after the first, beside that of the same
chat when only full blocks are cached. And eight users, with one new system prompt, begin at the same time:
the median time to the first token of each, in the same two ways."""

import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from gpu_worker.step.runner import Runner
from ops.bench.command import parser
from ops.bench.load.workload import Question
from ops.bench.record import write
from ops.bench.rig.in_process import InProcess
from ops.bench.rig.on_cpu import load_on_cpu

VOCABULARY = 4096
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen 3.5": (
        "Qwen3_5TextConfig",
        {
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
        }
        | {"head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16},
    ),
    "LFM2": (
        "Lfm2Config",
        {
            "intermediate_size": 6656,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        }
        | {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    ),
}
USERS = (1, 8, 32)
PROMPT = 256
"""Tokens of each user's prompt."""
LONG = 512
"""Tokens of the prompt that is timed."""
ANSWER = 160
"""Tokens of each of Quire's answers. By its end all users are answered at once: no prompt is left to
compute."""
STEPS = 24
"""Tokens of each answer of transformers', whose prompts are computed together."""
TURNS, SYSTEM, TURN = 12, 400, 60
"""Turns of the chat, tokens of its system prompt, and of each question; answers have that many at most."""
AT_ONCE = 8
"""Users that begin at the same time."""
STOPS = frozenset(range(0, VOCABULARY, 16))
"""Tokens that end messages: every sixteenth of the vocabulary, so that a random answer soon draws one."""


def make(name: str, directory: Path, seed: int, **smaller: Any) -> None:
    """Write the model of `SIZES`, or a `smaller` one."""
    torch.manual_seed(seed)
    kind, sizes = SIZES[name]
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    every = {"hidden_size": 1024, "vocab_size": VOCABULARY, "tie_word_embeddings": True}
    config = getattr(transformers, kind)(**every | {"max_position_embeddings": 2048} | ends | sizes | smaller)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)


def load_runner(directory: Path) -> Runner:
    """Quire's side of a model."""
    return load_on_cpu(directory, kv_memory=4 << 30)


def quire(runner: Runner, seed: int) -> dict[str, float]:
    """Milliseconds between tokens by number of users, and of a prompt."""
    chance, found = random.Random(seed), dict[str, float]()

    def drawn(count: int) -> list[int]:
        return [chance.randrange(VOCABULARY) for _ in range(count)]

    for users in USERS:
        engine = InProcess(runner)
        asked = [engine.ask(Question(drawn(PROMPT), ANSWER)) for _ in range(users)]
        engine.run()
        begun, ended = (
            max(each.answer.chunks[0] for each in asked),
            min(each.answer.chunks[-1] for each in asked),
        )
        gaps = [
            later - earlier
            for each in asked
            for earlier, later in pairwise(each.answer.chunks)
            if begun <= earlier and later <= ended
        ]
        found[f"{users} users"] = 1000 * median(gaps)
    engine = InProcess(runner)
    asked = [engine.ask(Question(drawn(LONG), 1))]
    engine.run()
    found[f"prompt of {LONG}"] = 1000 * (asked[0].answer.chunks[0] - asked[0].answer.sent)
    return found


def static(model: Any, seed: int) -> dict[str, float]:
    """The same by transformers."""
    chance, found = torch.Generator().manual_seed(seed), dict[str, float]()
    with torch.inference_mode():
        for users in USERS:
            prompts = torch.randint(VOCABULARY, (users, PROMPT), generator=chance)
            out, times = model(prompts, use_cache=True, logits_to_keep=1), list[float]()
            for _ in range(STEPS):
                begun = time.perf_counter()
                token = out.logits[:, -1:].argmax(-1)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
                times.append(time.perf_counter() - begun)
            found[f"{users} users"] = 1000 * median(times)
        begun = time.perf_counter()
        prompt = torch.randint(VOCABULARY, (1, LONG), generator=chance)
        model(prompt, use_cache=True, logits_to_keep=1).logits.argmax(-1)
        found[f"prompt of {LONG}"] = 1000 * (time.perf_counter() - begun)
    return found


def message(chance: random.Random, count: int) -> list[int]:
    """That many tokens, and a stop token."""
    return [16 * chance.randrange(VOCABULARY // 16) + 1 for _ in range(count)] + [min(STOPS)]


def chat(runner: Runner, seed: int) -> list[Question]:
    """The questions of a chat, with as many tokens for each answer as it has. Each is answered in order."""
    chance, engine, asked = random.Random(seed), InProcess(runner), list[Question]()
    text = message(chance, SYSTEM)
    for _ in range(TURNS):
        text = [*text, *message(chance, TURN), 1, 2, 3]
        answered = engine.ask(Question(text, TURN), stop_token_ids=STOPS)
        engine.run()
        (answer,) = answered.tokens
        asked.append(Question(text, len(answer)))
        text = [*text, *answer]
        if answer[-1] not in STOPS:
            text.append(min(STOPS))
    return asked


def beginnings(_: Runner, seed: int) -> list[Question]:
    """The first questions of chats that have the same system prompt."""
    chance = random.Random(seed)
    system = message(chance, SYSTEM)
    return [Question([*system, *message(chance, TURN), 1, 2, 3], TURN) for _ in range(AT_ONCE)]


def turn_by_turn(runner: Runner, questions: list[Question], stops: frozenset[int]) -> list[float]:
    """Milliseconds to the first token of each turn after the first."""
    engine, found = InProcess(runner), list[float]()
    for question in questions:
        asked = engine.ask(question, stop_token_ids=stops)
        engine.run()
        found.append(1000 * (asked.answer.chunks[0] - asked.answer.sent))
    return found[1:]


def at_once(runner: Runner, questions: list[Question], stops: frozenset[int]) -> list[float]:
    """Milliseconds to the first token of each question, if all are asked at the same time."""
    engine = InProcess(runner)
    asked = [engine.ask(question, stop_token_ids=stops).answer for question in questions]
    engine.run()
    return [1000 * (answer.chunks[0] - answer.sent) for answer in asked]


def compare_blocks(
    runner: Runner,
    rounds: int,
    seed: int,
    ask: Callable[[Runner, int], list[Question]],
    time_them: Callable[[Runner, list[Question], frozenset[int]], list[float]],
) -> dict[str, float]:
    """Milliseconds to the first token, without partial blocks and with them."""
    taken: dict[str, list[float]] = defaultdict(list)
    for turn in range(rounds):
        questions = ask(runner, seed + turn)
        for name, stops in (("full blocks", frozenset[int]()), ("partial blocks", STOPS)):
            taken[name] += time_them(runner, questions, stops)
    found = {name: round(median(times), 2) for name, times in taken.items()}
    return found | {"times": round(found["full blocks"] / found["partial blocks"], 2)}


def compare(runner: Runner, directory: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Of transformers: see `in_turns`."""
    threads = torch.get_num_threads()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()

    def theirs(seed: int) -> dict[str, float]:
        torch.set_num_threads(threads)
        return static(model, seed)

    return in_turns(runner, "transformers", theirs, rounds, seed)


def in_turns(
    runner: Runner, name: str, theirs: Callable[[int], dict[str, float]], rounds: int, seed: int
) -> dict[str, Any]:
    """Milliseconds of another engine and of Quire, medians of the rounds; how many times as long it takes.

    `theirs`: as `quire`, by the seed of the round.
    """
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    quire(runner, seed)  # steps are recorded
    for turn in range(1, rounds + 1):
        for engine, times in ((name, theirs(seed + turn)), ("quire", quire(runner, seed + turn))):
            for what, milliseconds in times.items():
                taken[what][engine].append(milliseconds)
    return {
        what: {engine: round(median(times), 2) for engine, times in both.items()}
        | {"times": round(median(both[name]) / median(both["quire"]), 2)}
        for what, both in taken.items()
    }


def main() -> None:
    command = parser(__doc__, "recurrent.json")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    kinds = {
        "first token of a turn": (chat, turn_by_turn),
        f"first token of {AT_ONCE} at once": (beginnings, at_once),
    }
    results: dict[str, dict[str, Any]] = {"milliseconds": {}, **{kind: {} for kind in kinds}}
    for name in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            make(name, Path(folder), options.seed)
            runner = load_runner(Path(folder))
            for kind, ways in kinds.items():
                results[kind][name] = compare_blocks(runner, options.rounds, options.seed, *ways)
            results["milliseconds"][name] = compare(runner, Path(folder), options.rounds, options.seed)
            print(name, *(each[name] for each in results.values()), flush=True)
    write(options.out, "recurrent", options.seed, results)


if __name__ == "__main__":
    main()
