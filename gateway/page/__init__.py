"""GET /: a chat page. GET /inside: what goes on inside. They load styles and scripts from /page/ alone."""

from pathlib import Path

from fastapi import APIRouter, Response

_FOLDER = Path(__file__).parent
_KINDS = {".css": "text/css", ".js": "text/javascript"}

# The pages ask their own gateway alone, and may not be framed. Their scripts cannot turn a text into HTML.
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def router() -> APIRouter:
    routes = APIRouter()
    _add(routes, "/", _FOLDER / "index.html", "text/html")
    _add(routes, "/inside", _FOLDER / "inside.html", "text/html")
    for file in sorted(_FOLDER.iterdir()):
        if file.suffix in _KINDS:
            _add(routes, f"/page/{file.name}", file, _KINDS[file.suffix])
    return routes


def _add(routes: APIRouter, path: str, file: Path, media_type: str) -> None:
    content = file.read_bytes()

    @routes.get(path, include_in_schema=False)
    async def page_file() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)
