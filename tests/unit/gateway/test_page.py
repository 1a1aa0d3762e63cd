"""The chat page and the API's description: whole in themselves, fetched from nowhere else."""

import re


async def test_the_page_needs_nothing_from_elsewhere(refusing):
    response = await refusing.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    page = response.text
    assert not re.search(r"https?://|\bsrc=|@import|url\(|href=\"(?!data:)", page)
    assert "innerHTML" not in page, "a model's text must never be markup"
    for endpoint in ("/v1/models", "/v1/chat/completions"):
        assert endpoint in page


async def test_the_page_is_accessible(refusing):
    page = (await refusing.get("/")).text
    assert '<html lang="en"' in page
    assert "<main" in page
    assert 'role="log"' in page
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
