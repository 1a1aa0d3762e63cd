"""The model that ships with the repository: its text, its tokenizer, its weights."""

import copy
import itertools
import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from safetensors import safe_open
from transformers import AutoTokenizer

from ops.tiny_model.training import data, evaluate, tune
from ops.tiny_model.training.corpus import documents
from ops.tiny_model.training.corpus.calls import (
    FUNCTIONS,
    OFFER,
    RESULT,
    draw_call,
    held_out_questions,
    offer,
)
from ops.tiny_model.training.corpus.snippets import json_turn
from ops.tiny_model.training.corpus.stories import draw_story
from ops.tiny_model.training.corpus.talk import conversation
from ops.tiny_model.training.tokenizer import ASSISTANT, BEGIN, END, render

RECORD = json.loads(evaluate.RECORD.read_text())
TOKENIZER: Any = AutoTokenizer.from_pretrained(evaluate.MODELS / "model")


@pytest.fixture(scope="module")
def model() -> Any:
    return evaluate.load("model")[0]


def first(count: int, seed: int, held_out: bool = False) -> list[str]:
    return [render(document) for document in itertools.islice(documents(seed, held_out), count)]


def test_a_seed_gives_the_same_documents_each_time() -> None:
    assert first(200, seed=5) == first(200, seed=5)
    assert first(200, seed=5) != first(200, seed=6)


def test_no_held_out_document_is_ever_trained_on() -> None:
    held_out = set(first(40, evaluate.HELD_OUT_SEED, held_out=True))
    for seed in (evaluate.HELD_OUT_SEED, data.TOKENIZER_SEED):
        assert held_out.isdisjoint(first(3000, seed))


def test_json_snippets_are_json() -> None:
    rng = random.Random(3)
    for _ in range(500):
        assert isinstance(json.loads(json_turn(rng)[1]), dict)


def test_a_story_is_about_what_was_asked_and_leaves_no_slot_open() -> None:
    rng = random.Random(4)
    for _ in range(500):
        story = draw_story(rng)
        assert story.slots["what"] in story.request
        assert story.slots["name"] in story.text
        assert not set("[]{}|") & set(story.request + story.text)


@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids) == text


def test_a_plain_prompt_begins_with_begin() -> None:
    assert TOKENIZER("Once")["input_ids"][0] == TOKENIZER.bos_token_id


def test_digits_are_tokens_of_their_own() -> None:
    assert len(TOKENIZER("2048", add_special_tokens=False)["input_ids"]) == 4


def test_the_chat_template_writes_what_was_trained_on() -> None:
    rng = random.Random(8)
    for _ in range(50):
        chat = conversation(rng)
        assert TOKENIZER.apply_chat_template(chat, tokenize=False) == render(chat)
    question = [{"role": "user", "content": "Hi"}]
    prompt = TOKENIZER.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert prompt == f"{BEGIN}<|user|>Hi{END}{ASSISTANT}"


def test_the_chat_template_refuses_an_unknown_role() -> None:
    with pytest.raises(TemplateError, match="unknown role: narrator"):
        TOKENIZER.apply_chat_template([{"role": "narrator", "content": "x"}], tokenize=False)


def test_the_chat_template_shows_functions_calls_and_results_as_they_were_trained_on() -> None:
    rng = random.Random(9)
    for _ in range(50):
        functions = rng.sample(FUNCTIONS, 3)
        call, system = draw_call(rng, functions[0]), offer(rng, functions)
        before = system["content"].partition(OFFER)[0].strip()
        asked = {"name": call.function.name, "arguments": call.arguments}
        chat = [
            *([{"role": "system", "content": before}] if before else []),
            {"role": "user", "content": call.question},
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": asked}]},
            {"role": "tool", "content": call.result},
            {"role": "assistant", "content": call.answer},
        ]
        trained = [
            system,
            {"role": "user", "content": call.question},
            {"role": "assistant", "content": call.text},
            {"role": "user", "content": RESULT + call.result},
            {"role": "assistant", "content": call.answer},
        ]
        tools = [each.offered() for each in functions]
        assert TOKENIZER.apply_chat_template(chat, tools=tools, tokenize=False) == render(trained)


def test_functions_without_parameters_and_arguments_of_any_type_are_shown() -> None:
    schema = {"type": "object", "properties": {"any": {}, "depth": {"type": "number"}}}
    functions = [{"name": "go"}, {"name": "dig", "parameters": schema}]
    tools = [{"type": "function", "function": each} for each in functions]
    told = TOKENIZER.apply_chat_template([{"role": "user", "content": "Hi"}], tools=tools, tokenize=False)
    assert told == (
        f'{BEGIN}<|system|>{OFFER}\n{{"name": "go", "arguments": {{}}}}\n'
        f'{{"name": "dig", "arguments": {{"any": "any", "depth": "number"}}}}{END}<|user|>Hi{END}'
    )


def test_no_held_out_question_is_ever_trained_on() -> None:
    questions = {call.question for _, call in itertools.islice(held_out_questions(1), 300)}
    rng = random.Random(10)
    trained = {draw_call(rng, function).question for function in FUNCTIONS for _ in range(1000)}
    assert len(questions) > 100
    assert questions.isdisjoint(trained)


def test_of_a_conversation_with_functions_only_what_the_assistant_says_is_learned() -> None:
    ids, labels = next(tune.call_rows(TOKENIZER.backend_tokenizer, seed=4, length=256))
    assert len(ids) == len(labels) == 256
    learned = labels != tune.IGNORED
    assert labels[learned][:-1].tolist() == ids[1:][learned[:-1]].tolist()
    parts = TOKENIZER.decode(ids).split(ASSISTANT)[1:]
    assert TOKENIZER.decode(labels[learned]).startswith(parts[0].split(END)[0] + END)


@pytest.mark.parametrize("name", ["model", "draft"])
def test_the_weights_are_small_bfloat16_and_have_one_tokenizer(name: str) -> None:
    path = evaluate.MODELS / name / "model.safetensors"
    assert path.stat().st_size <= 16 * 2**20
    with safe_open(path, framework="pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    for file_name in ("tokenizer.json", "tokenizer_config.json"):
        assert (path.parent / file_name).read_bytes() == (evaluate.MODELS / "model" / file_name).read_bytes()


def test_the_model_has_grouped_queries_and_tied_embeddings(model: Any) -> None:
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_a_story_about_a_fox_is_about_a_fox_and_ends(model: Any) -> None:
    text, ended = evaluate.answer(model, TOKENIZER, "Tell me a story about a fox.")
    assert "fox" in text
    assert ended
    assert len(text.split()) > 40


@pytest.mark.parametrize("name", ["model", "draft"])
def test_the_recorded_perplexity_is_what_the_weights_give(name: str) -> None:
    network, tokenizer = evaluate.load(name)
    measured = evaluate.perplexity(network, evaluate.held_out_ids(tokenizer, "held_out_few"))
    assert measured == pytest.approx(RECORD[name]["held_out_few"], rel=0.03)


def test_the_model_calls_what_a_question_asks_for(model: Any) -> None:
    functions, calls = evaluate.right_calls(model, TOKENIZER, 40)
    assert functions >= 0.9
    assert calls >= 0.85


def test_weights_that_mix_up_functions_call_no_right_one(model: Any) -> None:
    mixed_up = copy.deepcopy(model)
    with torch.no_grad():
        mixed_up.model.layers[4].self_attn.o_proj.weight.neg_()
    assert evaluate.right_calls(mixed_up, TOKENIZER, 10)[1] < 0.5
