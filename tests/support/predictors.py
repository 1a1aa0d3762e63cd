"""Layers for multi-token prediction: written into checkpoints as they are published, and transformers' own as
the oracle of what they guess."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_layers import MtpModel

from gpu_worker.models.predictor import Predictor

QWEN = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "post_norm": "mtp.norm",
    "mtp_block": "mtp.layers.0",
}
"""Where published files of Qwen have the parts of the layer."""


def add_predictor(directory: Path, model: Any, numbered: bool = False, seed: int = 0) -> Any:
    """Add a random layer to the checkpoint of a tiny model of transformers. Returns it.

    `numbered`: after the last layer of the model, as GGUF files have it, whatever the family.
    """
    torch.manual_seed(seed)
    config = model.config
    config.num_mtp_layers = 1
    for kinds, ours in (("layer_types", "full_attention"), ("mlp_layer_types", "sparse")):
        if getattr(config, kinds, None) is not None:
            setattr(config, f"mtp_{kinds}", [ours])
    predictor = MtpModel(model, 1).eval()
    own = predictor.layers[0]
    own.mtp_block.register_forward_hook(_hidden_states)
    for name, tensor in [*own.named_parameters(), *own.named_buffers()]:
        if tensor.dim() == 1:
            torch.nn.init.normal_(tensor, mean=0.0 if name.endswith("bias") else 0.7, std=0.2)
        else:
            torch.nn.init.normal_(tensor, std=0.2)
    qwen = "qwen" in config.model_type and not numbered
    names = QWEN if qwen else {"post_norm": "shared_head.norm", "mtp_block": ""}
    base = "" if qwen else f"model.layers.{config.num_hidden_layers}"
    added = dict[str, Tensor]()
    for name, tensor in own.state_dict().items():
        part, _, rest = name.partition(".")
        path = ".".join(filter(None, (base, names.get(part, part), rest)))
        if ".experts.gate_up_proj" in path and not qwen:
            for number, both in enumerate(tensor):
                stem = path.replace("gate_up_proj", str(number))
                added |= zip(
                    (f"{stem}.gate_proj.weight", f"{stem}.up_proj.weight"), both.chunk(2), strict=True
                )
        elif ".experts.down_proj" in path and not qwen:
            for number, down in enumerate(tensor):
                added[path.replace("down_proj", f"{number}.down_proj.weight")] = down
        else:
            added[path] = tensor
    file = directory / "model.safetensors"
    save_file({name: t.contiguous().clone() for name, t in (load_file(file) | added).items()}, file)
    path = directory / "config.json"
    values = json.loads(path.read_text())
    if not qwen:
        values["num_nextn_predict_layers"] = 1
    path.write_text(json.dumps(values))
    return predictor


def logits_of(predictor: Predictor) -> list[Tensor]:
    """What will be the logits of each pass in which the layer guesses, [rows, vocab_size] each."""
    found, logits = list[Tensor](), predictor.logits

    def logged(normed: Tensor) -> Tensor:
        found.append(logits(normed).clone())
        return found[-1]

    predictor.logits = logged  # type: ignore[method-assign]
    return found


def _hidden_states(block: Any, inputs: Any, output: Any) -> Tensor:
    """What a decoder layer of transformers returns, less what GLM 5's tells the next layer."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


@torch.inference_mode()
def predicted(model: Any, predictor: Any, tokens: list[int], guesses: list[int]) -> Tensor:
    """Logits of each of the `guesses`, float32 [guesses, vocab_size], which follow `tokens` one by one.

    The last of the tokens is the one that the model has sampled last. The first one has none before it, and
    takes its own hidden state.
    """
    states = model.model(torch.tensor([tokens])).last_hidden_state
    before, found, tokens = torch.cat((states[:, :1], states[:, :-1]), 1), [], list(tokens)
    for guess in guesses:
        positions = torch.arange(len(tokens))[None]
        own = predictor.forward_layer(0, before, positions, None, input_ids=torch.tensor([tokens]))
        found.append(predictor.shared_head(own[0, -1]).float())
        tokens.append(guess)
        before = torch.cat((before, own[:, -1:]), 1)
    return torch.stack(found)
