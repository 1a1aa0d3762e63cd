"""The chat page and the API's description: whole in themselves, fetched from nowhere else."""

import re
from pathlib import Path

import pytest

import gateway.page

FOLDER = Path(gateway.page.__file__).parent


async def test_the_page_needs_nothing_from_elsewhere(refusing):
    pages = {"": {"page/style.css", "page/chat.js"}}
    pages["inside"] = {"page/style.css", "page/inside.css", "page/inside.js"}
    named = []
    for path, files in pages.items():
        text = (await refusing.get(f"/{path}")).text
        found = re.findall(r'<(?:link|script)[^>]+(?:src|href)="(?!data:)([^"]+)"', text)
        assert set(found) == files
        named += found
        assert set(re.findall(r'<a [^>]*href="([^"]+)"', text)) <= {"./", "inside"}
    for file in FOLDER.glob("*.js"):
        imports = re.findall(r'^import .* from "\./(.+)";$', file.read_text(), re.MULTILINE)
        assert len(imports) == file.read_text().count("import "), file
        named += [f"page/{name}" for name in imports]
    assert {Path(name).name for name in named} == {file.name for file in FOLDER.glob("*.[cj]s*")}
    for path, kind in [*((path, "text/html") for path in pages), *((name, None) for name in named)]:
        response = await refusing.get(f"/{path}")
        assert response.status_code == 200
        kind = kind or {"css": "text/css", "js": "text/javascript"}[path.rpartition(".")[2]]
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "http" not in policy
        # A pattern or a check may name a scheme; an address has a host.
        assert not re.search(r"https?://\w|@import|url\(|innerHTML", response.text), path


async def test_nothing_else_of_its_folder_is_served(refusing):
    for name in ("__init__.py", "index.html", "inside.html", "../settings.py", "%2e%2e/settings.py"):
        assert (await refusing.get(f"/page/{name}")).status_code == 404


@pytest.mark.parametrize(("path", "log"), [("/", 'role="log"'), ("/inside", 'role="status"')])
async def test_the_pages_are_accessible(refusing, path, log):
    page = (await refusing.get(path)).text
    assert '<html lang="en"' in page
    assert "<main" in page
    assert log in page
    labelled = set(re.findall(r'<label for="([^"]+)"', page))
    for tag in re.findall(r"<(?:input|select|textarea|button)\b[^>]*>", page):
        name = re.search(r'\bid="([^"]+)"', tag)
        assert name, tag
        assert "<button" in tag or "aria-label=" in tag or name[1] in labelled, tag


async def test_the_api_describes_its_requests(refusing):
    document = (await refusing.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path, name in (("/v1/completions", "CompletionBody"), ("/v1/chat/completions", "ChatBody")):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["schema"] == {"$ref": f"#/components/schemas/{name}"}
        assert "temperature" in schemas[name]["properties"]
    references = set(re.findall(r'"#/components/schemas/(\w+)"', (await refusing.get("/openapi.json")).text))
    assert references <= schemas.keys()


async def test_no_documentation_page_that_loads_from_elsewhere(refusing):
    assert (await refusing.get("/redoc")).status_code == 404
