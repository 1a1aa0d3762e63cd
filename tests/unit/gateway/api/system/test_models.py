"""GET /v1/models, for clients of two APIs."""

from datetime import datetime

import httpx
import pytest

from gateway.api.system.models_answer_schema import (
    LocalModel,
    LocalModels,
    ModelList,
    ModelObject,
    Properties,
)
from gateway.app import Options
from tests.unit.gateway.conftest import app_of


async def test_a_list_is_openais_and_anthropics(gateway):
    answer = await gateway.http.get("/v1/models")
    found = ModelList.model_validate(answer.json(), strict=True)
    (model,) = found.data
    assert (model.id, model.display_name, model.owned_by) == ("m", "m", "quire")
    assert (model.lifecycle, model.max_input_tokens, model.max_tokens) == ("active", 2048, 2048)
    assert (model.context_length, model.max_context_length) == (2048, 2048)
    assert (found.first_id, found.last_id, found.has_more) == ("m", "m", False)
    assert datetime.fromisoformat(model.created_at).timestamp() == model.created


@pytest.mark.parametrize("path", ["/v1/models/m", "/v1/models/m/"])
async def test_one_model(gateway, path):
    answer = await gateway.http.get(path)
    assert ModelObject.model_validate(answer.json(), strict=True).max_model_len == 2048


async def test_a_model_has_an_entry_for_each_of_its_names_and_answers_to_all(backend):
    app = app_of(backend, options=Options(aliases={"gpt": "m", "none": "n"}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [(one["id"], one["root"]) for one in listed] == [("m", "m"), ("gpt", "m")]
        found = (await http.get("/v1/models/gpt")).json()
        assert (found["id"], found["root"], found["max_model_len"]) == ("gpt", "m", 2048)
        body = {"model": "gpt", "prompt": "A", "max_tokens": 2}
        answer = (await http.post("/v1/completions", json=body)).json()
        assert (answer["model"], answer["choices"][0]["text"]) == ("gpt", "Once upon")
        refused = await http.post("/v1/completions", json=body | {"model": "none"})
        assert refused.status_code == 404
        assert refused.json()["error"]["message"] == "The model 'none' does not exist. Available: 'm'."


@pytest.mark.parametrize(
    ("told", "kind"), [({}, "llm"), ({"images": True}, "vlm"), ({"num_labels": 2}, "embeddings")]
)
async def test_models_of_lm_studio(gateway, told, kind):
    gateway.backend.lease_list[0].info.update(told)
    answer = await gateway.http.get("/api/v0/models")
    (model,) = LocalModels.model_validate(answer.json(), strict=True).data
    assert (model.id, model.type, model.max_context_length) == ("m", kind, 2048)
    one = await gateway.http.get("/api/v0/models/m")
    assert LocalModel.model_validate(one.json(), strict=True) == model
    assert (await gateway.http.get("/api/v0/models/n")).status_code == 404


async def test_properties_of_llama_cpp(gateway):
    for path in ("/props", "/props?model=m"):
        found = Properties.model_validate((await gateway.http.get(path)).json(), strict=True)
        assert (found.default_generation_settings.n_ctx, found.model_alias) == (2048, "m")
        assert found.default_generation_settings.params["temperature"] == 0.6
        assert not found.modalities.vision
    assert (await gateway.http.get("/props?model=n")).status_code == 404
    documented = (await gateway.http.get("/openapi.json")).json()["paths"]["/props"]["get"]
    assert [one["name"] for one in documented["parameters"]] == ["model"]


async def test_adapters(gateway, backend):
    """Each is listed beside its model, and a request for one says so to the tokenizer."""
    (scheduler,) = (lease for lease in backend.lease_list if lease.service == "scheduler")
    scheduler.info["adapters"] = ["sql"]
    app = app_of(backend, options=Options(aliases={"gpt": "sql"}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        found = ModelList.model_validate((await http.get("/v1/models")).json(), strict=True)
        listed = [(one.id, one.root, one.parent) for one in found.data]
        assert listed == [("m", "m", None), ("gpt", "sql", "m"), ("sql", "sql", "m")]
        one = (await http.get("/v1/models/sql")).json()
        assert (one["id"], one["parent"]) == ("sql", "m")
        tags = (await http.get("/api/tags")).json()["models"]
        assert [each["name"] for each in tags] == ["m", "sql"]
        for name, adapter in (("sql", "sql"), ("gpt", "sql"), ("m", "")):
            body = {"model": name, "prompt": "A", "max_tokens": 2}
            assert (await http.post("/v1/completions", json=body)).json()["model"] == name
            assert gateway.tokenizer.requests[-1].adapter == adapter
        chat = {"model": "sql:latest", "messages": [{"role": "user", "content": "A"}], "stream": False}
        assert (await http.post("/api/chat", json=chat)).json()["model"] == "sql"
        assert gateway.tokenizer.requests[-1].adapter == "sql"


async def test_no_model(gateway):
    gateway.backend.lease_list = []
    found = ModelList.model_validate((await gateway.http.get("/v1/models")).json(), strict=True)
    assert (found.data, found.first_id, found.last_id) == ([], None, None)
