"""Prompts with images, in models that write more than placeholders for one: as transformers makes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE, get_image_prompt_string

from tests.unit.tokenizer_svc.conftest import save
from tests.unit.tokenizer_svc.model.test_images import FakeStore, ask, message, png
from tokenizer_svc.errors import ModelDirectoryError
from tokenizer_svc.model.images import ImageSizes
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.context import unknown
from tokenizer_svc.requests.prompt import prompt_of
from tokenizer_svc.templates.template import ChatTemplate, Rendering

AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
PLACES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5))
SMOL: dict[str, Any] = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "scale_factor": 4,
    "vision_config": {"patch_size": 16},
    "vocab_size": 1000,
}
SMOL_SETTINGS = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}

GLM: dict[str, Any] = {
    "architectures": ["Glm4vForConditionalGeneration"],
    "vision_config": {},
    "vocab_size": 1000,
}
GLM_TEMPLATE = (
    "[gMASK]<sop>{% for msg in messages %}<|{{ msg.role }}|>\n{% if msg.content is string %}{{ msg.content }}"
    "{% else %}{% for item in msg.content %}{% if item.type == 'image' or 'image' in item %}"
    "<|begin_of_image|><|image|><|end_of_image|>{% elif item.type == 'text' %}{{ item.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

INTERN: dict[str, Any] = {
    "architectures": ["InternVLForConditionalGeneration"],
    "downsample_ratio": 0.5,
    "vision_config": {"patch_size": [14, 14]},
    "vocab_size": 1000,
}
INTERN_SETTINGS = {"size": {"height": 56, "width": 56}}
INTERN_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{'<|im_end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer_with(*names: str, line_ends: bool = True) -> Tokenizer:
    """Byte-level BPE. `line_ends`: two of them are one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["a picture of\n\n" if line_ends else "a picture"] * 20, trainer)
    tokenizer.add_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def model_with(
    tokenizer: Tokenizer, directory: Path, placeholder: str, template: str, config: Any, settings: Any
) -> TextModel:
    return save(
        *(tokenizer, directory),
        tokenizer_config={"chat_template": template},
        config={**config, "image_token_id": tokenizer.token_to_id(placeholder)},
        preprocessor_config=settings,
    )


async def tokens_of(model: TextModel, template: str, request: Any, store: FakeStore) -> Any:
    async def render(
        messages: Sequence[Any], arguments: Any, tools: Sequence[Any], _: str, rendering: Rendering
    ) -> str:
        return ChatTemplate(template, {}).render(messages, arguments, tools, rendering)

    return await prompt_of(model, request, unknown, render, ImageSizes(store))


async def test_tiles_of_smolvlm(tmp_path: Path) -> None:
    names = ("<|im_start|>", "<end_of_utterance>", "<image>", AROUND, WHOLE, *PLACES)
    tokenizer, store = tokenizer_with(*names), FakeStore()
    model = model_with(tokenizer, tmp_path, "<image>", DEFAULT_CHAT_TEMPLATE, SMOL, SMOL_SETTINGS)
    wide, tall, small = (store.add(png(*size)) for size in ((90, 60), (30, 120), (8, 8)))
    request = ask(
        *(message("Two:", (0, wide), (4, tall)), message("yes", role="assistant")),
        message("", (0, small), low=True),
    )
    prompt = await tokens_of(model, DEFAULT_CHAT_TEMPLATE, request, store)
    runs = [
        get_image_prompt_string(*tiles, 64, AROUND, "<image>", WHOLE) for tiles in ((3, 4), (4, 1), (0, 0))
    ]
    assert tokenizer.decode(prompt.tokens, skip_special_tokens=False) == (
        f"<|im_start|>User:{runs[0]}Two:{runs[1]}<end_of_utterance>\nAssistant: yes<end_of_utterance>\n"
        f"User:{runs[2]}<end_of_utterance>\nAssistant:"
    )
    text = tokenizer.decode(prompt.tokens, skip_special_tokens=False)
    assert prompt.tokens == tokenizer.encode(text, add_special_tokens=False).ids
    assert [(each.rows, each.columns) for each in prompt.images] == [(3, 4), (4, 1), (1, 1)]
    for each, run in zip(prompt.images, runs, strict=True):
        own = prompt.tokens[each.position : each.position + each.tokens]
        assert tokenizer.decode(own, skip_special_tokens=False) == run


@pytest.mark.parametrize(
    ("lacking", "what"), [(PLACES[-1], "<row_4_col_4>"), (WHOLE, "<global-img>"), ("", r"\\n\\n")]
)
def test_what_a_tokenizer_lacks_is_named(tmp_path: Path, lacking: str, what: str) -> None:
    names = [name for name in ("<image>", AROUND, WHOLE, *PLACES) if name != lacking]
    tokenizer = tokenizer_with(*names, line_ends=bool(lacking))
    with pytest.raises(ModelDirectoryError, match=f"the tokenizer has no {what}, which stands for images"):
        model_with(tokenizer, tmp_path, "<image>", DEFAULT_CHAT_TEMPLATE, SMOL, SMOL_SETTINGS)


async def test_frames_of_glm(tmp_path: Path) -> None:
    tokenizer = tokenizer_with("<|begin_of_image|>", "<|image|>", "<|end_of_image|>")
    model, store = model_with(tokenizer, tmp_path, "<|image|>", GLM_TEMPLATE, GLM, {}), FakeStore()
    request = ask(message("What?", (0, store.add(png(140, 112))), (5, store.add(png(20, 20)))))
    prompt = await tokens_of(model, GLM_TEMPLATE, request, store)
    first, second = ("<|image|>" * count for count in (20, 9))
    assert tokenizer.decode(prompt.tokens, skip_special_tokens=False) == (
        f"[gMASK]<sop><|user|>\n<|begin_of_image|>{first}<|end_of_image|>What?"
        f"<|begin_of_image|>{second}<|end_of_image|><|assistant|>\n"
    )
    assert [(each.rows, each.columns, each.tokens) for each in prompt.images] == [(4, 5, 20), (3, 3, 9)]


async def test_crops_of_internvl(tmp_path: Path) -> None:
    tokenizer, store = (
        tokenizer_with("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"),
        FakeStore(),
    )
    model = model_with(tokenizer, tmp_path, "<IMG_CONTEXT>", INTERN_TEMPLATE, INTERN, INTERN_SETTINGS)
    wide, square = store.add(png(168, 56)), store.add(png(56, 56))
    prompt = await tokens_of(model, INTERN_TEMPLATE, ask(message("What?", (0, wide), (0, square))), store)
    first, second = ("<IMG_CONTEXT>" * (4 * tiles) for tiles in (4, 1))
    text = f"<img>{first}</img>\n<img>{second}</img>\nWhat?"
    text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.tokens == tokenizer.encode(text, add_special_tokens=False).ids
    assert [(each.rows, each.columns, each.tokens) for each in prompt.images] == [(1, 3, 18), (1, 1, 6)]


async def test_images_of_llava(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
        "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}"
        "{% endfor %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
        "{{ content['text'] + ' ' }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    )
    tower = {"model_type": "clip_vision_model", "patch_size": 14}
    config = {"architectures": ["LlavaForConditionalGeneration"], "vision_config": tower, "vocab_size": 1000}
    tokenizer, store = tokenizer_with("<image>"), FakeStore()
    model = model_with(tokenizer, tmp_path, "<image>", template, config, {"crop_size": 56})
    prompt = await tokens_of(model, template, ask(message("What?", (5, store.add(png(9, 300))))), store)
    text = f"USER: {'<image>' * 16}\nWhat? ASSISTANT:"
    assert prompt.tokens == tokenizer.encode(text, add_special_tokens=False).ids
