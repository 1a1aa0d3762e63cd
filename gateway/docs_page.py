"""GET /docs: the OpenAPI document as one page to read, which loads nothing else."""

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Response

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ border-top: 1px solid #8886; padding: .2rem .6rem .2rem 0; text-align: left; vertical-align: top }}
code {{ overflow-wrap: anywhere }}
</style>
<h1>{title}</h1><p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>
"""

Schema = Mapping[str, Any]


def router(document: Callable[[], dict[str, Any]]) -> APIRouter:
    """`document`: gives the OpenAPI document, which does not change."""
    routes = APIRouter()
    pages: list[bytes] = []

    @routes.get("/docs", include_in_schema=False)
    def docs() -> Response:  # in a thread: the document may have to be made
        if not pages:
            pages.append(page_of(document()).encode())
        return Response(pages[0], media_type="text/html", headers=_HEADERS)

    return routes


def page_of(document: Mapping[str, Any]) -> str:
    """The document as HTML: its operations, then the schemas that these name."""
    parts = [_HEAD.format(title=escape(document["info"]["title"]))]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(f"{method.upper()} {path}", operation)
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _schema(name, schema)
    return "\n".join(parts)


def _operation(label: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h2 id="{escape(label)}">{escape(label)}</h2>'
    yield f"<p>{escape(operation.get('description', ''))}</p>"
    if "requestBody" in operation:
        yield f"<p>Body: {_content(operation['requestBody'])}</p>"
    yield "<table><tr><th>Status<th>Answer<th>"
    for status, response in operation["responses"].items():
        yield f"<tr><td>{status}<td>{_content(response)}<td>{escape(response['description'])}"
    yield "</table>"


def _content(holder: Mapping[str, Any]) -> str:
    """What a body or an answer is, by media type."""
    kinds = [f"{escape(kind)}: {_kind(one['schema'])}" for kind, one in holder.get("content", {}).items()]
    return "<br>".join(kinds)


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f'<h3 id="{escape(name)}">{escape(name)}</h3>'
    yield f"<p>{escape(schema.get('description', ''))}</p>"
    required = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    if not fields:
        return
    yield "<table><tr><th>Field<th>Type<th>Default<th>"
    for field, kind in fields:
        default = "required" if field in required else _value(kind["default"]) if "default" in kind else ""
        description = escape(kind.get("description", ""))
        yield f"<tr><td><code>{escape(field)}</code><td>{_kind(kind)}<td>{default}<td>{description}"
    yield "</table>"


def _kind(schema: Schema) -> str:
    """What values a schema allows, in a few words."""
    if (reference := schema.get("$ref")) is not None:
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(map(_kind, schema[several])))
    if "const" in schema:
        return _value(schema["const"])
    if "enum" in schema:
        return " or ".join(map(_value, schema["enum"]))
    kind = schema.get("type", "any value")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    bounds = [f"{sign} {schema[name]}" for name, sign in _BOUNDS.items() if name in schema]
    return escape(f"{kind} {' '.join(bounds)}".strip())


def _value(value: object) -> str:
    return f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"


_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "minLength": "length ≥",
    "maxLength": "length ≤",
}
