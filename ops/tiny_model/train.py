"""The recipe: `python -m ops.tiny_model.train` makes tokenizer, model and draft from nothing.

Parts can be run alone (`--part tokenizer|model|draft`). Checkpoints go to a scratch folder outside
the repository, and a run that was stopped goes on from the last of them.

The matrices are trained with Muon (Jordan et al. 2024: momentum, orthogonalised), everything else
with AdamW; the learning rate warms up, stays, and falls linearly to zero over the last steps.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from ops.tiny_model.corpus import documents
from ops.tiny_model.tokenizer import BEGIN, END, PAD, VOCAB_SIZE, render, save_tokenizer, train_tokenizer

HERE = Path(__file__).parent
MAX_LENGTH = 2048
TOKENIZER_SEED, TOKENIZER_DOCUMENTS = 11, 30_000


@dataclass(frozen=True)
class Recipe:
    """One model: its shape and its training. Lengths are in tokens."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    steps: int
    seed: int
    batch: int = 16
    length: int = 256
    long_share: float = 0.12
    """The last part of the steps sees long chats, in rows of 2,048 tokens."""
    muon_rate: float = 0.01
    adam_rate: float = 0.003
    decay_share: float = 0.35


MODEL = Recipe(
    "model", hidden=256, layers=8, heads=4, kv_heads=2, intermediate=768, steps=2000, seed=20261121
)
DRAFT = Recipe(
    "draft", hidden=128, layers=2, heads=4, kv_heads=2, intermediate=384, steps=1500, seed=20261122
)


def config_of(recipe: Recipe, tokenizer: Tokenizer) -> LlamaConfig:
    """The Llama configuration of a recipe."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.hidden // recipe.heads,
        intermediate_size=recipe.intermediate,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )


def make_tokenizer() -> Tokenizer:
    """Train the tokenizer on the text alone: special tokens are added by name, never learned."""
    texts = []
    for document, _ in zip(documents(TOKENIZER_SEED), range(TOKENIZER_DOCUMENTS), strict=False):
        texts += [document] if isinstance(document, str) else [message["content"] for message in document]
    return train_tokenizer(texts)


def rows(tokenizer: Tokenizer, seed: int, length: int, long: bool) -> Iterator[Tensor]:
    """Documents one after another, cut into rows of `length` + 1 token ids."""
    stream = documents(seed, long=long)
    ids: list[int] = []
    while True:
        while len(ids) <= length:
            texts = [render(next(stream)) for _ in range(256)]
            for encoded in tokenizer.encode_batch(texts, add_special_tokens=False):
                ids += encoded.ids
        yield torch.tensor(ids[: length + 1])
        ids = ids[length:]


def batches(recipe: Recipe, tokenizer: Tokenizer, start: int) -> Iterator[Tensor]:
    """The batches from step `start` on: short rows, then long ones with as many tokens in all."""
    short_steps = round(recipe.steps * (1 - recipe.long_share))
    while True:
        long = start >= short_steps
        length = MAX_LENGTH if long else recipe.length
        # A resumed run draws other documents than it has seen, not the same ones again.
        source = rows(tokenizer, recipe.seed * 1000 + start, length, long)
        while (start >= short_steps) == long:
            yield torch.stack([next(source) for _ in range(recipe.batch * recipe.length // length)])
            start += 1


def optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=recipe.adam_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def rate(recipe: Recipe, step: int) -> float:
    """The share of the full learning rate at a step: warm up, stay, fall."""
    decay = recipe.steps * recipe.decay_share
    return min(1.0, (step + 1) / 100, (recipe.steps - step) / decay)


def loss_of(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Mean cross entropy (nats a token) of a batch of shape (rows, length + 1)."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a Hugging Face directory: bfloat16 weights, configurations, tokenizer."""
    config = model.config
    copy = LlamaForCausalLM(config)
    copy.load_state_dict(model.state_dict())
    copy.bfloat16()
    copy.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        do_sample=True,
        temperature=0.7,
        top_p=0.95,
    )
    copy.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, directory, MAX_LENGTH)


class Run:
    """A model in training: its optimizers, its step, its checkpoint."""

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, scratch: Path) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.model = LlamaForCausalLM(config_of(recipe, tokenizer))
        self.optims = optimizers(self.model, recipe)
        self.full_rates = [optim.param_groups[0]["lr"] for optim in self.optims]
        self.checkpoint = scratch / f"{recipe.name}.pt"
        self.start = 0
        if self.checkpoint.exists():
            self._resume()
        self.model.model.compile()  # in place: the names of the parameters stay

    def _resume(self) -> None:
        state = torch.load(self.checkpoint)
        self.start = state["step"]
        self.model.load_state_dict(state["model"])
        for optim, saved in zip(self.optims, state["optims"], strict=True):
            optim.load_state_dict(saved)

    def save(self, step: int) -> None:
        """Keep everything that the steps from `step` on depend on."""
        states = [optim.state_dict() for optim in self.optims]
        torch.save({"step": step, "model": self.model.state_dict(), "optims": states}, self.checkpoint)

    def update(self, step: int, batch: Tensor) -> float:
        """One optimizer step; returns the loss before it, in nats a token."""
        loss = loss_of(self.model, batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optim, full in zip(self.optims, self.full_rates, strict=True):
            optim.param_groups[0]["lr"] = full * rate(self.recipe, step)
            optim.step()
            optim.zero_grad()
        return loss.item()


def train(recipe: Recipe, tokenizer: Tokenizer, scratch: Path) -> None:
    """Train one model, with a checkpoint now and then, and export it."""
    run = Run(recipe, tokenizer, scratch)
    began, shown = time.monotonic(), 0.0
    source = batches(recipe, tokenizer, run.start)
    for step in range(run.start, recipe.steps):
        loss = run.update(step, next(source))
        shown = loss if step == run.start else 0.95 * shown + 0.05 * loss
        if step % 20 == 0 or step == recipe.steps - 1:
            speed = (step + 1 - run.start) * recipe.batch * recipe.length / (time.monotonic() - began)
            print(f"{recipe.name} step {step} loss {shown:.4f} tokens/s {speed:.0f}", flush=True)
        if step % 200 == 199:
            run.save(step + 1)
    export(run.model, tokenizer, HERE / recipe.name)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("all", "tokenizer", "model", "draft"), default="all")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/quire-tiny-model"))
    parser.add_argument(
        "--untrained", action="store_true", help="only write the directories, with first weights"
    )
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    path = args.scratch / "tokenizer.json"
    if not path.exists():
        make_tokenizer().save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    for recipe in (MODEL, DRAFT):
        if args.untrained:
            export(LlamaForCausalLM(config_of(recipe, tokenizer)), tokenizer, HERE / recipe.name)
        elif args.part in ("all", recipe.name):
            print(json.dumps(asdict(recipe)), flush=True)
            train(recipe, tokenizer, args.scratch)


if __name__ == "__main__":
    main()
