"""POST /tokenize and /detokenize. The fake tokenizer makes a token of each character."""

import pytest

from proto.rpc import Lease
from tests.unit.gateway.conftest import leases_of

MESSAGES = [{"role": "user", "content": "A fox"}]


async def test_a_prompt(gateway):
    answer = await gateway.http.post("/tokenize", json={"model": "m", "prompt": "fox"})
    tokens = [ord(character) for character in "fox"]
    assert answer.json() == {"count": 3, "max_model_len": 2048, "tokens": tokens, "token_strs": None}
    (request,) = gateway.tokenizer.requests
    assert not request.HasField("add_special_tokens")
    assert not request.echo


@pytest.mark.parametrize(
    ("fields", "special"), [({}, False), ({"add_special": True}, True), ({"add_special_tokens": True}, True)]
)
async def test_a_text_in_the_shape_of_llama_cpp(gateway, fields, special):
    ask = {"content": "fox", **fields}
    answer = await gateway.http.post("/tokenize", json=ask)
    assert answer.json()["tokens"] == [ord(character) for character in "fox"]
    (request,) = gateway.tokenizer.requests
    assert (request.text, request.add_special_tokens) == ("fox", special)


async def test_an_empty_text_has_no_tokens(refusing):
    answer = await refusing.post("/tokenize", json={"model": "m", "content": ""})
    assert (answer.status_code, answer.json()["tokens"]) == (200, [])


async def test_one_text_at_a_time(refusing):
    answer = await refusing.post("/tokenize", json={"model": "m", "content": "fox", "prompt": "fox"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_a_conversation_with_everything_that_changes_its_tokens(gateway):
    tool = {"type": "function", "function": {"name": "f"}}
    ask = {
        "messages": [*MESSAGES, {"role": "assistant", "content": "It"}],
        "tools": [tool],
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "continue_final_message": True,
        "add_special_tokens": True,
        "chat_template": "{{ messages }}",
        "return_token_strs": True,
    }
    answer = await gateway.http.post("/tokenize", json={"model": "m", **ask})
    assert answer.json()["token_strs"] == list("A foxIt")
    (request,) = gateway.tokenizer.requests
    chat = request.chat
    assert (chat.no_generation_prompt, chat.continue_final_message) == (True, True)
    assert (chat.template, chat.template_arguments) == ("{{ messages }}", '{"enable_thinking":false}')
    assert '"name":"f"' in chat.tools
    assert request.add_special_tokens


async def test_tokens_become_the_text_that_they_are(gateway):
    answer = await gateway.http.post("/detokenize", json={"model": "m", "tokens": [102, 111, 120]})
    assert answer.json() == {"prompt": "fox", "content": "fox"}
    (request,) = gateway.tokenizer.requests
    assert request.echo
    assert not request.skip_special_tokens


async def test_the_only_model_need_not_be_named(gateway):
    assert (await gateway.http.post("/tokenize", json={"prompt": "A"})).json()["count"] == 1
    assert (await gateway.http.post("/detokenize", json={"tokens": [65]})).json()["prompt"] == "A"


async def test_of_several_models_one_is_named(gateway):
    gateway.backend.lease_list = [*leases_of("m"), Lease("tokenizer-2", "tokenizer", 1, {"model": "n"})]
    answer = await gateway.http.post("/tokenize", json={"prompt": "A"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "A", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": "A", "tools": []}, "tools"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "continue_final_message": 1}, "continue_final_message"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": ["A"]}, "tokens[0]"),
    ],
)
async def test_what_is_refused(refusing, path, fields, param):
    answer = await refusing.post(path, json={"model": "m", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_token_that_the_vocabulary_does_not_have(gateway):
    answer = await gateway.http.post("/detokenize", json={"model": "m", "tokens": [65, 2_000_000]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_a_model_that_does_not_exist(refusing, path):
    answer = await refusing.post(path, json={"model": "n", "prompt": "A", "tokens": [1]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
