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

from ops.model_directory.image_files import measured
from ops.model_directory.settings import SHIPPED_MODEL
from ops.model_directory.vision import Grid, Vision, read_vision
from proto.images_pb2 import PromptImage

PLACEHOLDER, BEGIN, END = 90, 93, 92
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
_SIGLIP = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
_SIGLIP |= {"patch_size": 2, "image_size": 8}
_PARTLY = {"rope_parameters": _TURNED | {"partial_rotary_factor": 0.5}, "num_key_value_heads": 1}
_PARTLY |= {"num_attention_heads": 2, "head_dim": 16}
_GLM = _QWEN | {"image_size": 8}
_GROUPED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1}
_GROUPED |= {"topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
_PIXTRAL = _SIGLIP | {"model_type": "pixtral", "head_dim": 8, "image_size": 32}
_LLAMA = {"model_type": "llama"}
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
_POOLED |= {"position_embedding_size": 256}
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
    "Mistral3": ({"model_type": "ministral3", "head_dim": 8}, _PIXTRAL),
    "Glm4v": (_PARTLY, _GLM),
    "Glm4vMoe": (_PARTLY | _GROUPED, _GLM),
    "Glm46V": (_PARTLY | {"model_type": "glm4v_text"}, _GLM),
    "Idefics3": (_LLAMA, _SIGLIP),
    "SmolVLM": (_LLAMA, _SIGLIP),
    "InternVL": ({"model_type": "qwen2"}, _SIGLIP),
    "Llava": (_LLAMA, _SIGLIP | {"model_type": "clip_vision_model"}),
    "LlavaNext": ({"model_type": "mistral"}, _SIGLIP | {"model_type": "clip_vision_model"}),
    "Llava with SigLIP": ({"model_type": "qwen2"}, _SIGLIP | {"model_type": "siglip_vision_model"}),
    "Llava with Pixtral": ({"model_type": "mistral", "sliding_window": None}, _PIXTRAL | {"patch_size": 4}),
    "Gemma3": (_WINDOWS, _SIGLIP | {"image_size": 16}),
    "Gemma4": (_LAYERED, _POOLED),
    "Gemma4 that sees together": (
        _LAYERED
        | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
        | {"use_bidirectional_attention": "vision"},
        _POOLED,
    ),
}
"""Of each kind of model, which the first word names, the configuration of its language model, beside `TEXT`,
and of its vision tower."""

_AREAS = {"patch_size": 2, "merge_size": 2, "temporal_patch_size": 2}
_AREAS |= {"size": {"shortest_edge": 4 * 16, "longest_edge": 4 * 16 * 25}}
_EDGES = {"patch_size": 2, "size": {"longest_edge": 32}}
_SIZES = [[8, 16], [16, 8]]
_SPLIT = {"size": {"longest_edge": 16}, "max_image_size": {"longest_edge": 8}}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "Qwen": {"image_processor_type": "Qwen2VLImageProcessor"} | _AREAS,
    "Mistral3": {"image_processor_type": "PixtralImageProcessor"} | _EDGES,
    "Llava with SigLIP": {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": 8, "width": 8},
    },
    "Llava with Pixtral": {"image_processor_type": "PixtralImageProcessor"} | _EDGES,
    "LlavaNext": {
        "image_processor_type": "LlavaNextImageProcessor",
        "size": {"shortest_edge": 8},
        "crop_size": {"height": 8, "width": 8},
        "image_grid_pinpoints": _SIZES,
    },
    "Llava": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 8},
        "crop_size": {"height": 8, "width": 8},
    },
    "Glm4v": {"image_processor_type": "Glm4vImageProcessor"} | _AREAS,
    "Glm46V": {"image_processor_type": "Glm46VImageProcessor"} | _AREAS,
    "Idefics3": {"image_processor_type": "Idefics3ImageProcessor"} | _SPLIT,
    "InternVL": {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": 8, "width": 8},
        "crop_to_patches": False,
        "max_patches": 4,
    },
    "SmolVLM": {"image_processor_type": "SmolVLMImageProcessor"} | _SPLIT,
    "Gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 16, "width": 16}},
    "Gemma4": {
        "image_processor_type": "Gemma4ImageProcessor",
        "patch_size": 2,
        "pooling_kernel_size": 2,
        "max_soft_tokens": 70,
    },
}
"""preprocessor_config.json, by what the kind of model begins with."""

_GEMMA_4 = {"boi_token_id": BEGIN, "eoi_token_id": END, "audio_config": None}
_CONFIGS: dict[str, dict[str, Any]] = {
    "Gemma3": {"mm_tokens_per_image": 16, "boi_token_index": BEGIN, "eoi_token_index": END},
    "Gemma4": _GEMMA_4,
    "Gemma4 that sees together": _GEMMA_4,
    "Mistral3": {"spatial_merge_size": 2},
    "LlavaNext": {"image_grid_pinpoints": _SIZES},
    "Llava with SigLIP": {"vision_feature_select_strategy": "full"},
    "Llava with Pixtral": {"vision_feature_select_strategy": "full", "vision_feature_layer": -1},
}
"""Other keys of config.json, by the kind of model."""

_CALLS: dict[str, dict[str, Any]] = {
    "Mistral3": {"patch_size": 4},
    "Llava with Pixtral": {"patch_size": 4},
    "InternVL": {"crop_to_patches": True},
}
"""What transformers' processor of the kind of model tells its image processor."""


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

    name: str
    directory: Path
    model: Any
    vision: Vision


def seeing(name: str, directory: Path, placeholder: int = PLACEHOLDER, **fields: Any) -> Seeing:
    """A random model of this kind, with a directory of its own.

    `fields`: of the configuration of its language model, in place of those of `TEXT`.
    """
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name.split()[0]}ForConditionalGeneration")
    text, tower = SEEING[name]
    config = kind.config_class(
        text_config=TEXT | text | fields,
        vision_config=tower,
        tie_word_embeddings=False,
        image_token_id=placeholder,
        **_CONFIGS.get(name, {}),
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
    return Seeing(name, directory, model, vision)


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
    return next(settings for kind, settings in _PROCESSORS.items() if name.startswith(kind))


@cache
def picture(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def run_of(vision: Vision, grid: Grid) -> list[int]:
    """The tokens of an image."""
    ids = {text: 80 + at for at, text in enumerate(vision.texts)}
    return [ids[token] if isinstance(token, str) else token for token in vision.run(grid)]


def with_images(
    vision: Vision, parts: list[int | bytes], low_detail: bool = False
) -> tuple[list[int], list[PromptImage]]:
    """A prompt of tokens and images, and what messages say of these."""
    tokens, images = list[int](), list[PromptImage]()
    for part in parts:
        if isinstance(part, int):
            tokens.append(part)
            continue
        grid = vision.grid(*measured(part), low_detail)
        run = run_of(vision, grid)
        images.append(
            PromptImage(
                position=len(tokens), tokens=len(run), rows=grid.rows, columns=grid.columns, data=part
            )
        )
        tokens += run
    return tokens, images


def logits_with(seeing: Seeing, tokens: list[int], files: list[bytes], **options: Any) -> Tensor:
    """What transformers computes, [tokens, vocab_size], with its own processing of images.

    `options`: of its image processor.
    """
    processor = transformers.AutoImageProcessor.from_pretrained(seeing.directory, backend="pil")
    given: dict[str, Any] = {}
    if files:
        images = [Image.open(io.BytesIO(file)) for file in files]
        found = processor(images=images, return_tensors="pt", **_CALLS.get(seeing.name, {}) | options)
        more = ("num_crops", "num_soft_tokens_per_image")  # for the processor of texts
        given = {name: found[name] for name in processor.model_input_names if name not in more}
    ids = torch.tensor([tokens])
    if seeing.vision.in_grid or seeing.name.startswith("Gemma"):
        kinds = "token_type_ids" if seeing.name == "Gemma3" else "mm_token_type_ids"
        given[kinds] = (ids == seeing.vision.placeholder).int()
    with torch.inference_mode():
        found: Tensor = seeing.model(input_ids=ids, **given).logits[0]
    return found
