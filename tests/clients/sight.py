"""Sight for the shipped model, so that clients can send images. What it sees makes no sense."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import Mistral3ForConditionalGeneration

from tests.support.seeing import SEEING, processor_of

IMAGES_AS_TEXT = (
    "{%- set read = namespace(messages=[]) -%}{%- for message in messages -%}"
    "{%- set content = message['content'] -%}{%- if content is not string and content is not none -%}"
    "{%- set content -%}{%- for part in message['content'] -%}"
    "{{- part['text'] if part['type'] == 'text' else '[IMG]' -}}{%- endfor -%}{%- endset -%}{%- endif -%}"
    "{%- set read.messages = read.messages + [dict(message, content=content)] -%}{%- endfor -%}"
    "{%- set messages = read.messages -%}"
)
"""Beginning of a chat template that knows no parts: they become text."""


def let_see(directory: Path) -> None:
    """Give a random vision tower to a copy of the shipped model. What it says of texts stays as it was."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = json.loads((directory / "config.json").read_text())
    first = text["vocab_size"]
    tokenizer.add_special_tokens(["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings["chat_template"] = IMAGES_AS_TEXT + settings["chat_template"]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    kind, (_, tower) = Mistral3ForConditionalGeneration, SEEING["Mistral3"]
    config = kind.config_class(
        architectures=[kind.__name__],
        text_config=text | {"model_type": "mistral", "vocab_size": first + 3, "sliding_window": None},
        vision_config=tower,
        tie_word_embeddings=True,
        image_token_id=first,
        spatial_merge_size=2,
    )
    torch.manual_seed(0)
    tensors = {
        name: tensor.to(torch.bfloat16)
        for name, tensor in kind(config).state_dict().items()
        if "language_model" not in name and name != "lm_head.weight"
    }
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name == "model.embed_tokens.weight":  # three more rows, for tokens that are never written
            tensor = torch.cat([tensor, tensor[text["pad_token_id"]].expand(3, -1)])
        tensors[name.replace("model.", "model.language_model.", 1)] = tensor
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(processor_of("Mistral3")))
