"""Templates as well-known families write them, rendered as transformers does, and what must come of them."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.templates.template import ChatTemplate, Rendering

FOLDER = Path(__file__).parent / "templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = {"role": "system", "content": " Be brief. "}
USER = {"role": "user", "content": "Hi <b>&</b>\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."}
MORE = {"role": "user", "content": " more {{ x }} "}
CHATS = {"one": [USER], "turns": [USER, THOUGHT, MORE], "system": [SYSTEM, USER, THOUGHT, MORE]}
EXPECTED = {
    "chatml": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nHi <b>&</b>\n<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: {today}\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "Hi <b>&</b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s>[INST] Hi <b>&</b>\n[/INST]",
    "gemma": "<s><start_of_turn>user\nHi <b>&</b><end_of_turn>\n<start_of_turn>model\n",
    "phi3": "<|user|>\nHi <b>&</b>\n<|end|>\n<|assistant|>\n",
    "qwen3": "<|im_start|>user\nHi <b>&</b>\n<|im_end|>\n<|im_start|>assistant\n",
}
"""Of the conversation `one`; `{today}` is the date."""


def source(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text().removesuffix("\n")


def theirs(model: TextModel, name: str) -> Any:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model.tokenizer, **TOKENS)  # type: ignore[no-untyped-call]
    tokenizer.chat_template = source(name)
    return tokenizer


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_template_makes_of_a_question(name: str) -> None:
    before = datetime.now()
    text = ChatTemplate(source(name), TOKENS).render(CHATS["one"])
    days = (before, datetime.now())  # which midnight may part
    assert text in {EXPECTED[name].replace("{today}", f"{day:%d %b %Y}") for day in days}


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}, {"date_string": "1 May 2030"}])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", EXPECTED)
def test_as_transformers_renders_it(
    byte_level: TextModel, name: str, chat: str, arguments: dict[str, Any]
) -> None:
    messages = CHATS[chat]
    if (name, chat) == ("gemma", "system"):  # it knows no such role: this is what the user says
        messages = [{"role": "user", "content": f"{SYSTEM['content']}\n\n{USER['content']}"}, *messages[2:]]
    expected = theirs(byte_level, name).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, **arguments
    )
    assert ChatTemplate(source(name), TOKENS).render(CHATS[chat], arguments) == expected


@pytest.mark.parametrize("arguments", [{}, {"add_vision_id": True}])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("name", ["qwen-vl", "pixtral"])
def test_images_as_transformers_renders_them(
    byte_level: TextModel, name: str, goes_on: bool, arguments: dict[str, Any]
) -> None:
    image, text = {"type": "image"}, {"type": "text", "text": " Compare "}
    last = {"type": "text", "text": "They are "}
    chat = [
        SYSTEM,
        {"role": "user", "content": [text, image, {"type": "text", "text": "with"}, image]},
        THOUGHT,
        MORE,
        {"role": "user", "content": [image, image, text]},
        {"role": "assistant", "content": [last]},
    ]
    told = Rendering(add_generation_prompt=not goes_on, continue_final_message=goes_on)
    rendered = ChatTemplate(source(name), TOKENS).render(chat, arguments, rendering=told)
    expected = theirs(byte_level, name).apply_chat_template(
        chat,
        tokenize=False,
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
        **arguments,
    )
    assert rendered == expected
    assert rendered.count("[IMG]") + rendered.count("<|image_pad|>") == 4


def test_a_switch_changes_what_is_said() -> None:
    template = ChatTemplate(source("qwen3"), TOKENS)
    plain = template.render([USER])
    assert template.render([USER], {"enable_thinking": True}) == plain
    assert template.render([USER], {"enable_thinking": False}) == plain + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_a_switch_cannot_pose_as_something_else(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} is not for a request to say") as caught:
        ChatTemplate(source("qwen3"), TOKENS).render([USER], {name: "x"})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("name", ["mistral", "gemma"])
def test_roles_that_do_not_alternate(byte_level: TextModel, name: str) -> None:
    """Both templates refuse them. Nothing makes a turn of a tool's message but the want of its call."""
    more = {"role": "assistant", "content": "more"}
    later = {"role": "system", "content": "later"}
    chat = [{"role": "assistant", "content": "I begin."}, USER, MORE, THOUGHT, more, later, USER]
    turns = [
        {"role": "user", "content": ""},
        chat[0],
        {"role": "user", "content": f"{USER['content']}\n\n{MORE['content']}"},
        {"role": "assistant", "content": f"{THOUGHT['content']}\n\nmore"},
        {"role": "user", "content": f"<system-reminder>\nlater\n</system-reminder>\n\n{USER['content']}"},
    ]
    template = ChatTemplate(source(name), TOKENS)
    assert template.render(chat) == theirs(byte_level, name).apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
    result = {"role": "tool", "content": "5", "tool_call_id": "1"}
    assert template.render([USER, THOUGHT, result]) == template.render(
        [USER, THOUGHT, {"role": "user", "content": "Result: 5"}]
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    with pytest.raises(InvalidRequestError, match="must alternate"):
        template.render([USER, THOUGHT | {"tool_calls": [call]}, result])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_conversation_begins_once(byte_level: TextModel, name: str) -> None:
    """The begin token comes from the template alone; the tokenizer would add one of its own to plain text."""
    text = ChatTemplate(source(name), TOKENS).render([USER])
    tokens = byte_level.encode(text, special=False)
    assert tokens.count(0) == text.count("<s>") <= 1
    expected = theirs(byte_level, name).apply_chat_template(
        [USER], add_generation_prompt=True, return_dict=False
    )
    assert tokens == expected
