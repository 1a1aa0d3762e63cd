from fastapi import APIRouter, FastAPI, Request, Response
from starlette.routing import Match
from starlette.testclient import TestClient

from gateway.http.routes import DirectRoutes


def _router() -> APIRouter:
    routes = APIRouter()

    @routes.post("/asked")
    async def asked(request: Request) -> Response:
        return Response(request.scope["route"].path + " " + (await request.body()).decode())

    @routes.get("/asked/{name}")
    async def named(request: Request, name: str) -> Response:
        return Response(name)

    @routes.get("/plain")
    async def plain() -> Response:
        return Response("plain")

    return routes


def _scope(method: str, path: str) -> dict[str, str]:
    return {"type": "http", "method": method, "path": path}


def test_endpoints_that_take_the_request_alone_are_found_by_method_and_path() -> None:
    direct = DirectRoutes(_router().routes)
    match, found = direct.matches(_scope("POST", "/asked"))
    assert match is Match.FULL
    assert found["route"].path == "/asked"
    for method, path in (("GET", "/asked"), ("GET", "/asked/x"), ("GET", "/plain"), ("POST", "/other")):
        assert direct.matches(_scope(method, path)) == (Match.NONE, {})
    assert direct.matches({"type": "websocket", "path": "/asked"}) == (Match.NONE, {})


def test_all_other_requests_are_fastapis() -> None:
    app, router = FastAPI(), _router()
    app.router.routes.append(DirectRoutes(router.routes))
    app.include_router(router)
    client = TestClient(app)
    assert client.post("/asked", content="this").text == "/asked this"
    assert client.get("/asked/x").text == "x"
    assert client.get("/plain").text == "plain"
    assert client.put("/asked").status_code == 405
    assert client.get("/other").status_code == 404
    assert set(client.get("/openapi.json").json()["paths"]) == {"/asked", "/asked/{name}", "/plain"}
