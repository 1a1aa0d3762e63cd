"""GET /: a chat page, one file that loads nothing else."""

from pathlib import Path

from fastapi import APIRouter, Response

_PAGE = Path(__file__).with_name("page.html")

# The page contains its style and script, calls its own gateway alone, and may not be framed.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}


def router() -> APIRouter:
    routes = APIRouter()
    page = _PAGE.read_bytes()

    @routes.get("/", include_in_schema=False)
    async def chat_page() -> Response:
        return Response(page, media_type="text/html", headers=_HEADERS)

    return routes
