"""GET /docs."""

import re

from gateway.docs_page import page_of


async def test_the_page_has_every_operation_and_every_schema(gateway):
    answer = await gateway.http.get("/docs")
    document = (await gateway.http.get("/openapi.json")).json()
    assert answer.headers["content-type"].startswith("text/html")
    found = set(re.findall(r'id="([^"]+)"', answer.text))
    operations = {f"{method.upper()} {path}" for path, one in document["paths"].items() for method in one}
    assert found == operations | document["components"]["schemas"].keys()
    assert set(re.findall(r'href="#([^"]+)"', answer.text)) <= found


async def test_the_page_loads_nothing(gateway):
    answer = await gateway.http.get("/docs")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script|<img|<link|src=|https?://", answer.text)


def test_what_a_field_may_be():
    text = {"type": "string", "maxLength": 9, "description": "A <b> & c."}
    list_of_t = {"type": "array", "items": {"$ref": "#/x/T"}}
    schema = {
        "properties": {
            "a": text,
            "b": {"anyOf": [list_of_t, {"type": "null"}], "default": None},
            "c": {"enum": ["x", 1]},
            "d": {"type": "integer", "minimum": 0},
        },
        "required": ["a"],
    }
    page = page_of({"info": {"title": "Q"}, "paths": {}, "components": {"schemas": {"T": schema}}})
    rows = re.findall(r"<tr><td><code>(.)</code><td>(.*)<td>(.*)<td>(.*)", page)
    assert rows == [
        ("a", "string length ≤ 9", "required", "A &lt;b&gt; &amp; c."),
        ("b", 'list of <a href="#T">T</a> or null', "<code>null</code>", ""),
        ("c", "<code>&quot;x&quot;</code> or <code>1</code>", "", ""),
        ("d", "integer ≥ 0", "", ""),
    ]
