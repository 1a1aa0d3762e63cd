"""The recipe: `python -m ops.tiny_model.training.train` makes tokenizer, model, draft and predictor from
nothing.

Parts can be run alone (`--part tokenizer|model|calls|draft|mtp`). Checkpoints go to a scratch folder outside
the repository, and a run that was stopped goes on from the last of them.

AdamW in bfloat16 autocast on the CPU; the learning rate warms up, stays, and falls linearly to zero
over the last steps.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaForCausalLM

from ops.tiny_model.training.data import batches, make_tokenizer, sample
from ops.tiny_model.training.initialise import burstiness, hold, initialise
from ops.tiny_model.training.optimize import optimizer_of, rate_at, update
from ops.tiny_model.training.predictor import DEPTHS, train_predictor
from ops.tiny_model.training.recipe import CALLS, DRAFT, MAX_LENGTH, MODEL, PREDICTOR, Recipe, config_of
from ops.tiny_model.training.tokenizer import VOCAB_SIZE, save_tokenizer
from ops.tiny_model.training.tune import tune

MODELS = Path(__file__).parents[1]


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
    copy.generation_config = GenerationConfig(
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
        initialise(self.model, burstiness(sample(tokenizer), VOCAB_SIZE))
        self.optim = optimizer_of(self.model)
        self.checkpoint = scratch / f"{recipe.name}.pt"
        self.start = 0
        if self.checkpoint.exists():
            self._resume()
        self.model.model.compile()  # in place: the names of the parameters stay

    def _resume(self) -> None:
        state = torch.load(self.checkpoint)
        self.start = state["step"]
        self.model.load_state_dict(state["model"])
        self.optim.load_state_dict(state["optim"])

    def save(self, step: int) -> None:
        """Keep everything that the steps from `step` on depend on."""
        state = {"step": step, "model": self.model.state_dict(), "optim": self.optim.state_dict()}
        torch.save(state, self.checkpoint)

    def update(self, step: int, batch: Tensor) -> float:
        """One optimizer step; returns the loss before it, in nats a token."""
        loss = loss_of(self.model, batch)
        torch.autograd.backward(loss)
        if step < self.recipe.held_steps:
            hold(self.model)
        update(self.model, self.optim, rate_at(self.recipe, step))
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
        if step % 100 == 99:
            run.save(step + 1)
    export(run.model, tokenizer, MODELS / recipe.name)


def learn_calls(tokenizer: Tokenizer) -> None:
    """The exported model learns to call functions, in float32, and is exported again."""
    print(json.dumps([asdict(phase) for phase in CALLS]), flush=True)
    directory = MODELS / MODEL.name
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tune(model, tokenizer, CALLS)
    export(model, tokenizer, directory)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--part", choices=("all", "tokenizer", "model", "calls", "draft", "mtp"), default="all"
    )
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/quire-tiny-model"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--untrained", action="store_true", help="only write the directories, with first weights"
    )
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    path = args.scratch / "tokenizer.json"
    if not path.exists():
        make_tokenizer().save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    for recipe in (MODEL, DRAFT):
        if args.untrained:
            export(LlamaForCausalLM(config_of(recipe, tokenizer)), tokenizer, MODELS / recipe.name)
        elif args.part in ("all", recipe.name):
            print(json.dumps(asdict(recipe)), flush=True)
            train(recipe, tokenizer, args.scratch)
    if args.part in ("all", "calls"):
        learn_calls(tokenizer)
    if args.part in ("all", "mtp"):
        print(json.dumps([asdict(PREDICTOR), DEPTHS]), flush=True)
        train_predictor(PREDICTOR, tokenizer, MODELS / MODEL.name, MODELS / PREDICTOR.name)


if __name__ == "__main__":
    main()
