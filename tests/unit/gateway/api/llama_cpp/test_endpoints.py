"""/completion, in the shape of llama.cpp's server."""

import json

import pytest

from gateway.api.llama_cpp.answer_schema import LlamaText
from tests.unit.gateway.api.anthropic.test_messages import STORY

PATH = "/completion"
ASK = {"model": "m", "prompt": "A fox"}


async def posted(gateway, **fields):
    answer = await gateway.http.post(PATH, json=ASK | fields)
    assert answer.status_code == 200, answer.text
    return answer


async def test_whole_and_streamed(gateway):
    answer = (await posted(gateway)).json()
    LlamaText.model_validate(answer, strict=True)
    assert (answer["content"], answer["stop"], answer["stop_type"]) == (STORY, True, "eos")
    assert [answer[name] for name in ("tokens_predicted", "tokens_evaluated", "tokens_cached")] == [12, 3, 2]
    request = gateway.tokenizer.requests[-1]
    assert (request.text, request.HasField("max_tokens")) == ("A fox", False)
    text = (await posted(gateway, stream=True)).text
    pieces = [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part]
    for piece in pieces:
        LlamaText.model_validate(piece, strict=True)
    assert "".join(piece["content"] for piece in pieces) == STORY
    assert [piece["stop"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]


async def test_parameters_as_frontends_send_them(gateway):
    fields = {
        **{"n_predict": 7, "repeat_penalty": 1.5, "top_k": -1, "temperature": 3.5, "min_p": 0.1, "seed": -1},
        **{"logit_bias": [[5, False], [7, 1.5]], "grammar": "", "json_schema": {"type": "object"}},
        **{"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"], "ignore_eos": True, "stop": ["\nUser:"]},
        **{"cache_prompt": True, "samplers": ["top_k"], "mirostat": 0},
    }
    answer = await posted(gateway, **fields)
    assert answer.headers["X-Quire-Ignored"] == "mirostat"
    request = gateway.tokenizer.requests[-1]
    assert (request.max_tokens, request.stop, request.ignore_eos) == (7, ["\nUser:"], True)
    assert request.shape.json_schema == '{"type":"object"}'
    sampling = request.sampling
    found = (sampling.temperature, sampling.top_k, sampling.repetition_penalty)
    assert found == (3.5, 0, 1.5)
    assert "repetition_penalty" not in request.left_out
    assert dict(zip(sampling.rules.biased_tokens, sampling.rules.biases, strict=True)) == {5: -100, 7: 1.5}
    assert sampling.rules.dry.dry_base == 1.75


async def test_tokens_and_how_many(gateway):
    await posted(gateway, prompt=[5, 6], max_tokens=3)
    request = gateway.tokenizer.requests[-1]
    assert request.WhichOneof("prompt") != "text"
    assert request.max_tokens == 3
    answer = (await posted(gateway, n_predict=0, max_tokens=3)).json()
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert gateway.tokenizer.requests[-1].max_tokens == 1
    answer = (await posted(gateway, response_fields=["content", "timings/prompt_n"])).json()
    assert answer == {"content": STORY, "timings/prompt_n": 1}


async def test_what_the_answer_does_not_have_is_told(gateway):
    fields = {"echo": True, "logprobs": 2, "stream_options": {"include_usage": True}, "stream": True}
    answer = await posted(gateway, **fields)
    assert answer.headers["X-Quire-Ignored"] == "echo, logprobs, stream_options"
    assert "A fox" not in answer.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"logit_bias": [[5]]}, "logit_bias"),
        ({"logit_bias": [["a", 1]]}, "logit_bias"),
        ({"logit_bias": [[5, 1]] * 5000}, "logit_bias"),
        ({"n_predict": "x"}, "n_predict"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
    ],
)
async def test_what_is_refused(gateway, fields, param):
    answer = await gateway.http.post(PATH, json=ASK | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
