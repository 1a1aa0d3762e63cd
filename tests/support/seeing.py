"""Small random models that see, and what transformers computes of their images."""

import io
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from ops.runtime.image_files import measured
from ops.runtime.settings import SHIPPED_MODEL
from ops.runtime.vision import EdgeVision, Grid, SquareVision, Vision, read_vision
from proto.images_pb2 import PromptImage

PLACEHOLDER, ROW_END, END, BEGIN = 90, 91, 92, 93
TEXT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
_TURNED = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 1]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_QWEN = {"patch_size": 2, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 2, "depth": 2}
_QWEN |= {"hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "in_channels": 3}
_DEEP = _QWEN | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
_DELTA = {"head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
_DELTA |= {"linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
_DELTA |= {"num_hidden_layers": 4, "rope_parameters": _TURNED | {"partial_rotary_factor": 1.0}}
_SHALLOW = _DEEP | {"deepstack_visual_indexes": []}
_WINDOWS = {"head_dim": 8, "sliding_window": 9, "query_pre_attn_scalar": 8}
_WINDOWS |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_LAYERED = {"head_dim": 8, "global_head_dim": 16, "sliding_window": 9, "num_kv_shared_layers": 1}
_LAYERED |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97, "pad_token_id": 0}
_LAYERED |= {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}
_POOLED = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
_POOLED |= {"num_key_value_heads": 2, "head_dim": 8, "patch_size": 2, "pooling_kernel_size": 2}
_POOLED |= {"position_embedding_size": 128}
SEEING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen2VL": (
        {"rope_parameters": _TURNED},
        {key: value for key, value in _QWEN.items() if "hidden" not in key and key != "intermediate_size"}
        | {"embed_dim": 16, "hidden_size": 32},
    ),
    "Qwen2_5_VL": (
        {"rope_parameters": _TURNED},
        _QWEN | {"window_size": 8, "fullatt_block_indexes": [1]},
    ),
    "Qwen3VL": ({"rope_parameters": _TURNED, "head_dim": 8}, _DEEP),
    "Qwen3VLMoe": ({"rope_parameters": _TURNED, "head_dim": 8} | _EXPERTS, _DEEP),
    "Qwen3_5": (_DELTA, _SHALLOW),
    "Qwen3_5Moe": (
        _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 24},
        _SHALLOW,
    ),
    "Mistral3": (
        {"model_type": "ministral3", "head_dim": 8},
        {
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 8,
            "patch_size": 2,
            "image_size": 32,
        },
    ),
    "Gemma3": (
        _WINDOWS,
        {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "patch_size": 2,
            "image_size": 16,
        },
    ),
    "Gemma4": (_LAYERED, _POOLED),
    "Gemma4 that sees together": (
        _LAYERED
        | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
        | {"use_bidirectional_attention": "vision"},
        _POOLED,
    ),
}
"""Of each kind of model the configuration of its language model, beside `TEXT`, and of its vision tower."""
WHOLE: dict[str, dict[str, Any]] = {
    "Mistral3": {"spatial_merge_size": 2},
    "Gemma3": {"mm_tokens_per_image": 16, "boi_token_index": BEGIN, "eoi_token_index": END},
    "Gemma4": {"boi_token_id": BEGIN, "eoi_token_id": END, "audio_config": None},
}
"""Of the whole model, by the first word of the kind."""
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template of `chatting`."""


@dataclass(frozen=True)
class Seeing:
    """A model that sees."""

    directory: Path
    model: Any
    vision: Vision


def seeing(name: str, directory: Path, placeholder: int = PLACEHOLDER, **fields: Any) -> Seeing:
    """A random model of this kind, with a directory of its own.

    `fields`: of the configuration of its language model, in place of those of `TEXT`.
    """
    torch.manual_seed(0)
    first = name.partition(" ")[0]
    kind = getattr(transformers, f"{first}ForConditionalGeneration")
    text, tower = SEEING[name]
    config = kind.config_class(
        text_config=TEXT | text | fields,
        vision_config=tower,
        tie_word_embeddings=False,
        image_token_id=placeholder,
        **WHOLE.get(first, {}),
    )
    model = kind(config).eval()
    with torch.no_grad():  # or what is seen would hardly matter
        for parameter in model.parameters():
            if not parameter.any():  # as transformers begins some
                torch.nn.init.normal_(parameter, std=0.05)
            parameter.mul_(3)
    model.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(processor_of(name)))
    vision = read_vision(directory, 1024)
    assert vision is not None
    return Seeing(directory, model, vision)


def chatting(directory: Path) -> Seeing:
    """A random model that sees and chats: it has the tokenizer of the shipped model, and a chat template."""
    tokenizer = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return seeing(
        "Qwen3VL",
        directory,
        tokenizer.token_to_id("<|image_pad|>"),
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=2048,
    )


def processor_of(name: str) -> dict[str, Any]:
    """preprocessor_config.json."""
    if name == "Gemma3":
        return {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 16, "width": 16}}
    if name.startswith("Gemma4"):
        patches = {"patch_size": 2, "pooling_kernel_size": 2, "max_soft_tokens": 70}
        return {"image_processor_type": "Gemma4ImageProcessor"} | patches
    if name == "Mistral3":
        size = {"longest_edge": 32}
        return {"image_processor_type": "PixtralImageProcessor", "patch_size": 2, "size": size}
    sizes = {"shortest_edge": 4 * 16, "longest_edge": 4 * 16 * 25}
    patches = {"patch_size": 2, "merge_size": 2, "temporal_patch_size": 2, "size": sizes}
    return {"image_processor_type": "Qwen2VLImageProcessor"} | patches


@cache
def picture(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def run_of(vision: Vision, grid: Grid) -> list[int]:
    """The tokens of an image."""
    ends = {"[IMG_BREAK]": ROW_END, "[IMG_END]": END}
    return [ends[token] if isinstance(token, str) else token for token in vision.run(grid)]


def with_images(vision: Vision, parts: list[int | bytes]) -> tuple[list[int], list[PromptImage]]:
    """A prompt of tokens and images, and what messages say of these."""
    tokens, images = list[int](), list[PromptImage]()
    for part in parts:
        if isinstance(part, int):
            tokens.append(part)
            continue
        grid = vision.grid(*measured(part))
        run = run_of(vision, grid)
        images.append(
            PromptImage(
                position=len(tokens), tokens=len(run), rows=grid.rows, columns=grid.columns, data=part
            )
        )
        tokens += run
    return tokens, images


def logits_with(seeing: Seeing, tokens: list[int], files: list[bytes]) -> Tensor:
    """What transformers computes, [tokens, vocab_size], with its own processing of images."""
    processor = transformers.AutoImageProcessor.from_pretrained(seeing.directory, backend="pil")
    given: dict[str, Any] = {}
    if files:
        images = [Image.open(io.BytesIO(file)) for file in files]
        more = {"patch_size": seeing.vision.patch} if isinstance(seeing.vision, EdgeVision) else {}
        given = dict(processor(images=images, return_tensors="pt", **more))
        for name in ("num_crops", "num_soft_tokens_per_image"):  # for the processor of texts
            given.pop(name, None)
    ids = torch.tensor([tokens])
    kinds = "token_type_ids" if isinstance(seeing.vision, SquareVision) else "mm_token_type_ids"
    if not isinstance(seeing.vision, EdgeVision):
        given[kinds] = (ids == seeing.vision.placeholder).int()
    with torch.inference_mode():
        found: Tensor = seeing.model(input_ids=ids, **given).logits[0]
    return found
