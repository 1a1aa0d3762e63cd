"""What transformers says that a model answers."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@cache
def load(directory: Path) -> tuple[Any, Any]:
    """Model (float32) and tokenizer of a Hugging Face directory."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(directory)


def chat_prompt(directory: Path, text: str) -> list[int]:
    """The tokens of a conversation of one user message, ready for the answer."""
    _, tokenizer = load(directory)
    messages = [{"role": "user", "content": text}]
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


def beams(
    directory: Path, prompt: list[int], max_tokens: int, width: int, count: int, **ask: Any
) -> list[list[int]]:
    """The `count` best continuations of `prompt` that `generate` finds with as many beams, best first."""
    rows = _generated(directory, prompt, max_tokens, num_beams=width, num_return_sequences=count, **ask)
    model, _ = load(directory)
    ends = model.generation_config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    return [_until(row, ends) for row in rows]


def _until(tokens: list[int], ends: set[int]) -> list[int]:
    """The tokens up to the first that ends them: what follows is padding."""
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens


def greedy(directory: Path, prompt: list[int], max_tokens: int, end: bool = True, **ask: Any) -> list[int]:
    """The tokens that `generate` adds to `prompt` greedily; `end=False` goes on past end tokens."""
    (tokens,) = _generated(directory, prompt, max_tokens, **({} if end else {"eos_token_id": None}), **ask)
    return tokens


def by_its_own_defaults(directory: Path, prompt: list[int]) -> list[int]:
    """The tokens that `generate` adds to `prompt` if nothing is said but what generation_config.json says."""
    model, _ = load(directory)
    with torch.inference_mode():
        output = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)))
    tokens: list[int] = output[0][len(prompt) :].tolist()
    return tokens


def embedding(directory: Path, text: str | list[int], pooling: str) -> torch.Tensor:
    """Of a text, or its tokens: float32 [hidden_size] of length 1, from the decoder's last hidden states.

    `pooling`: mean or last.
    """
    states = hidden_states(directory, text)
    return torch.nn.functional.normalize(states.mean(0) if pooling == "mean" else states[-1], dim=0)


def hidden_states(directory: Path, text: str | list[int]) -> torch.Tensor:
    """Of each token of a text, or of its tokens: float32 [tokens, hidden_size], the decoder's last ones."""
    model, tokenizer = load(directory)
    tokens = tokenizer(text)["input_ids"] if isinstance(text, str) else text
    with torch.inference_mode():
        states: torch.Tensor = model.base_model(torch.tensor([tokens])).last_hidden_state[0]
    return states


def _generated(directory: Path, prompt: list[int], max_tokens: int, **ask: Any) -> list[list[int]]:
    """What `generate` adds to `prompt` without drawing, in each of its answers."""
    model, _ = load(directory)
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=max_tokens,
            **ask,
        )
    return [row[len(prompt) :].tolist() for row in output]
