"""Texts with a gap: /v1/fim/completions, /infill, and `suffix` of /v1/completions and /api/generate."""

import json

import grpc
import pytest

from gateway.api.llama_cpp.answer_schema import LlamaText
from gateway.api.openai.answer_schema import ChatCompletion, ChatCompletionChunk
from proto.sampling_pb2 import LENGTH
from tests.unit.gateway.api.anthropic.test_messages import STORY

INFILL = {"model": "m", "input_prefix": "def fox(", "input_suffix": "\n    return 1"}
FIM = {"model": "m", "prompt": "def fox(", "suffix": "\n    return 1"}
NAMES = {"temperature", "top_p", "seed", "top_k", "max_tokens"}


async def posted(gateway, path, **fields):
    answer = await gateway.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer


async def pieces(gateway, kind, path, **fields):
    """The objects of a stream, each of which is as documented."""
    answer = await posted(gateway, path, stream=True, **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = [part.removeprefix("data: ") for part in answer.text.split("\n\n")]
    found = [json.loads(part) for part in found if part not in ("", "[DONE]")]
    for one in found:
        kind.model_validate(one, strict=True)
    return found


def gap_of(gateway):
    """What the tokenizer is asked for."""
    request = gateway.tokenizer.requests[-1]
    assert request.WhichOneof("prompt") == "infill"
    return request.infill.before, request.infill.after


GAP = ("def fox(", "\n    return 1")


async def test_mistrals_api(gateway):
    answer = (await posted(gateway, "/v1/fim/completions", **FIM)).json()
    ChatCompletion.model_validate(answer, strict=True)
    assert answer["choices"][0]["message"]["content"] == STORY
    assert (answer["usage"]["prompt_tokens"], gap_of(gateway)) == (3, GAP)
    chunks = await pieces(gateway, ChatCompletionChunk, "/v1/fim/completions", **FIM)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == STORY
    await posted(gateway, "/v1/fim/completions", model="m", prompt="")
    assert gap_of(gateway) == ("", "")


async def test_parameters_of_mistrals_api(gateway):
    fields = {"temperature": 0.5, "top_p": 0.75, "max_tokens": 4, "min_tokens": 2, "random_seed": 7}
    await posted(gateway, "/v1/fim/completions", **FIM, **fields, stop=["a"])
    request = gateway.tokenizer.requests[-1]
    assert (request.sampling.temperature, request.sampling.top_p, request.max_tokens) == (0.5, 0.75, 4)
    assert (request.sampling.rules.min_tokens, request.sampling.seed, request.stop) == (2, 7, ["a"])
    await posted(gateway, "/v1/fim/completions", **FIM, seed=8)
    request = gateway.tokenizer.requests[-1]
    assert (request.sampling.seed, {*request.left_out} & NAMES) == (8, NAMES - {"seed"})


async def test_llama_cpps_api(gateway):
    answer = (await posted(gateway, "/infill", **INFILL)).json()
    LlamaText.model_validate(answer, strict=True)
    assert (answer["content"], answer["stop"], answer["stop_type"]) == (STORY, True, "eos")
    counts = ("tokens_predicted", "tokens_evaluated", "tokens_cached")
    assert [answer[name] for name in counts] == [12, 3, 2]
    assert (answer["timings"]["prompt_n"], answer["timings"]["predicted_n"]) == (1, 12)
    assert answer["generation_settings"] == {"n_ctx": 2048}
    assert gap_of(gateway) == GAP
    *parts, last = await pieces(gateway, LlamaText, "/infill", **INFILL)
    assert "".join(part["content"] for part in parts) == STORY
    assert {part["stop"] for part in parts} == {False}
    changing = {"content", "timings"}
    assert {**last, **dict.fromkeys(changing)} == {**answer, **dict.fromkeys(changing)}


async def test_parameters_of_llama_cpps_api(gateway):
    extra = [{"filename": "a.py", "text": "A"}, {"text": "B", "time": 5}]
    fields = {"n_predict": 4, "top_k": 40, "repeat_penalty": 1.5, "seed": -1, "cache_prompt": True}
    await posted(gateway, "/infill", **INFILL, **fields, input_extra=extra, prompt="a, ")
    request = gateway.tokenizer.requests[-1]
    assert (request.max_tokens, request.sampling.top_k, request.sampling.repetition_penalty) == (4, 40, 1.5)
    files = [(one.name, one.text) for one in request.infill.files]
    assert (files, gap_of(gateway)) == ([("a.py", "A"), ("file", "B")], ("def fox(a, ", GAP[1]))
    await posted(gateway, "/infill", **INFILL, n_predict=-1, seed=-1)
    seeds = {request.sampling.seed for request in gateway.tokenizer.requests}
    assert (len(seeds), gateway.tokenizer.requests[-1].HasField("max_tokens")) == (2, False)


async def test_a_prompt_that_is_only_cached(gateway):
    answer = (await posted(gateway, "/infill", **INFILL, n_predict=0)).json()
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert gateway.tokenizer.requests[-1].max_tokens == 1
    assert len(await pieces(gateway, LlamaText, "/infill", **INFILL, n_predict=0)) == 1


async def test_how_an_answer_ended(gateway):
    answer = (await posted(gateway, "/infill", **INFILL, n_predict=2)).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("limit", "")
    tell = gateway.tokenizer.generate

    async def stopped(request, context):
        async for chunk in tell(request, context):
            for delta in chunk.deltas:
                delta.stop_string = "\n" if delta.finish_reason else ""
                assert delta.finish_reason != LENGTH
            yield chunk

    gateway.tokenizer.generate = stopped
    answer = (await posted(gateway, "/infill", **INFILL, stop=["\n"])).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "\n")


async def test_fields_that_llama_vim_wants(gateway):
    wanted = ["content", "timings/prompt_n", "generation_settings/n_ctx", "truncated", "nobody/knows"]
    answer = (await posted(gateway, "/infill", **INFILL, response_fields=wanted)).json()
    assert answer == {
        "content": STORY,
        "timings/prompt_n": 1,
        "generation_settings/n_ctx": 2048,
        "truncated": False,
    }


async def test_names_of_fields_are_short(gateway):
    """Each is looked for in every piece of a stream."""
    answer = await gateway.http.post("/infill", json=INFILL | {"response_fields": ["content", "/" * 65]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_fields[1]")


async def test_completions_with_a_suffix(gateway):
    answer = (await posted(gateway, "/v1/completions", **FIM, max_tokens=20)).json()
    assert (answer["choices"][0]["text"], gap_of(gateway)) == (STORY, GAP)
    echoed = (await posted(gateway, "/v1/completions", **FIM, max_tokens=20, echo=True)).json()
    assert echoed["choices"][0]["text"] == "def fox(" + STORY
    await posted(gateway, "/v1/completions", **{**FIM, "prompt": ""}, max_tokens=20)
    assert gap_of(gateway) == ("", GAP[1])
    await posted(gateway, "/v1/completions", **{**FIM, "suffix": ""})
    assert gateway.tokenizer.requests[-1].text == "def fox("


async def test_generate_with_a_suffix(gateway):
    answer = (await posted(gateway, "/api/generate", **FIM, system="Be brief.", stream=False)).json()
    assert (answer["response"], gap_of(gateway)) == (STORY, GAP)
    await posted(gateway, "/api/generate", **{**FIM, "prompt": ""}, stream=False)
    assert gap_of(gateway) == ("", GAP[1])


@pytest.mark.parametrize("path", ["/v1/fim/completions", "/infill", "/v1/completions"])
async def test_a_model_that_cannot(gateway, path):
    async def refuse(request, context):
        details = (("quire-param", "suffix"),)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no tokens to fill in the middle", details)
        yield

    gateway.tokenizer.generate = refuse
    answer = await gateway.http.post(path, json=INFILL if path == "/infill" else FIM)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "no tokens to fill in the middle"
