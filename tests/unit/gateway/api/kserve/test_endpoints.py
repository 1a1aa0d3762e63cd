"""KServe's API: answers, readiness and errors in its shape."""

import httpx
import pytest

from gateway.api.kserve.schema import (
    InferAnswer,
    KserveError,
    KserveLive,
    KserveModel,
    KserveModelReady,
    KserveReady,
    KserveServer,
)
from tests.unit.gateway.conftest import app_of

TEXTS = {"name": "text_input", "datatype": "BYTES", "shape": [2], "data": ["A fox", "An owl"]}
STORY = "Once upon a time, a fox saw snow ❄."
INFER = "/v2/models/m/infer"


def read(answer, kind, status=200):
    assert answer.status_code == status, answer.text
    return kind.model_validate(answer.json(), strict=True)


@pytest.mark.parametrize("data", [["A fox", "An owl"], [["A fox"], ["An owl"]]])
async def test_texts_go_on_in_the_shape_in_which_they_came(gateway, data):
    tensor = TEXTS | {"shape": [2, 1], "data": data}
    asked = {"id": "7", "inputs": [tensor], "parameters": {"max_tokens": 50, "seed": 3}}
    answer = read(await gateway.http.post(INFER, json=asked), InferAnswer)
    assert (answer.model_name, answer.id) == ("m", "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, output.shape) == ("text_output", "BYTES", [2, 1])
    assert output.data == [STORY, STORY]
    assert sorted(one.text for one in gateway.tokenizer.requests) == ["A fox", "An owl"]
    assert {one.max_tokens for one in gateway.tokenizer.requests} == {50}


async def test_without_an_id_the_answer_has_that_of_the_request(gateway):
    answer = await gateway.http.post(INFER, json={"inputs": [TEXTS], "outputs": [{"name": "text_output"}]})
    assert read(answer, InferAnswer).id == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"inputs": []},
        {"inputs": [TEXTS, TEXTS]},
        {"inputs": [TEXTS | {"shape": [3]}]},
        {"inputs": [TEXTS | {"shape": [-1, -2]}]},
        {"inputs": [TEXTS | {"datatype": "FP32"}]},
        {"inputs": [TEXTS | {"data": [1, 2]}]},
        {"inputs": [TEXTS], "parameters": {"stream": True}},
        {"inputs": [TEXTS], "parameters": {"prompt": "other"}},
        {"inputs": [TEXTS], "parameters": {"temperature": "hot"}},
    ],
)
async def test_what_is_refused(refusing, asked):
    assert read(await refusing.post(INFER, json=asked), KserveError, 400).error


async def test_a_model_that_is_not_there(gateway):
    for path in ("/v2/models/n", "/v2/models/n/ready"):
        assert "'n'" in read(await gateway.http.get(path), KserveError, 404).error
    asked = {"inputs": [TEXTS]}
    assert "'n'" in read(await gateway.http.post("/v2/models/n/infer", json=asked), KserveError, 404).error


async def test_the_server_and_its_model(gateway):
    assert read(await gateway.http.get("/v2"), KserveServer).name == "quire"
    model = read(await gateway.http.get("/v2/models/m"), KserveModel)
    assert (model.name, model.inputs[0].name, model.outputs[0].name) == ("m", "text_input", "text_output")


@pytest.mark.parametrize(("change", "status"), [(None, 200), ("stalled", 503), ("gone", 503)])
async def test_readiness(gateway, change, status):
    if change == "stalled":
        gateway.backend.lease_list[1].info["stalled"] = 1
    elif change == "gone":
        gateway.backend.lease_list = []
    ready = await gateway.http.get("/v2/health/ready")
    assert read(ready, KserveReady, status).ready is (status == 200)
    assert read(await gateway.http.get("/v2/health/live"), KserveLive).live
    if change != "gone":
        model = await gateway.http.get("/v2/models/m/ready")
        assert read(model, KserveModelReady, status) == KserveModelReady(name="m", ready=status == 200)


async def test_while_it_stops_it_is_not_ready_and_lives(gateway):
    gateway.app.state.drain.begun = True
    assert not read(await gateway.http.get("/v2/health/ready"), KserveReady, 503).ready
    assert read(await gateway.http.get("/v2/health/live"), KserveLive).live


async def test_health_alone_needs_no_key(backend, keys_of):
    transport = httpx.ASGITransport(app_of(backend, keys_of({"secret": "acme"})))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/v2/health/live")).status_code == 200
        assert (await http.get("/v2/health/ready")).status_code == 200
        assert read(await http.get("/v2/models/m"), KserveError, 401).error
        assert (await http.post("/v2/rerank", json={})).status_code == 401
