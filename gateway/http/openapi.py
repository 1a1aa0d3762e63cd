"""The request bodies in /openapi.json. FastAPI does not know them, because `gateway.api.body` reads them."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REFERENCE = "#/components/schemas/{model}"


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of an operation whose body is a `model`."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def add_schemas(app: FastAPI, *models: type[BaseModel]) -> None:
    """Add the schemas of `models` to the components of the app's document."""
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    document = app.openapi()
    document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
