"""GET /v1/models, for clients of two APIs."""

from datetime import datetime

import pytest

from gateway.api.answer_schema import ModelList, ModelObject


async def test_a_list_is_openais_and_anthropics(gateway):
    answer = await gateway.http.get("/v1/models")
    found = ModelList.model_validate(answer.json(), strict=True)
    (model,) = found.data
    assert (model.id, model.display_name, model.owned_by) == ("m", "m", "quire")
    assert (found.first_id, found.last_id, found.has_more) == ("m", "m", False)
    assert datetime.fromisoformat(model.created_at).timestamp() == model.created


@pytest.mark.parametrize("path", ["/v1/models/m", "/v1/models/m/"])
async def test_one_model(gateway, path):
    answer = await gateway.http.get(path)
    assert ModelObject.model_validate(answer.json(), strict=True).max_model_len == 2048


async def test_no_model(gateway):
    gateway.backend.lease_list = []
    found = ModelList.model_validate((await gateway.http.get("/v1/models")).json(), strict=True)
    assert (found.data, found.first_id, found.last_id) == ([], None, None)
