"""GET /: the page for people, with chat and status, and the files that it is made of.

They are read once, at the start, and each has a route of its own: nothing that a client sends becomes a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

FOLDER = Path(__file__).parents[1] / "web"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Scripts and styles are the server's own files, and the page speaks to nobody else. With Trusted Types the browser itself refuses to
# make markup of a string, so what a model writes cannot become any.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

_HEADERS = {
    # Kept, and asked about each time: a page and a script of two versions never meet.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

router = APIRouter(include_in_schema=False)


def _serving(path: Path) -> Callable[[Request], Awaitable[Response]]:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": etag}

    async def serve(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if known.strip() == "*" or etag in (one.strip().removeprefix("W/") for one in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_TYPES[path.suffix])

    return serve


for _path in sorted(FOLDER.iterdir()):
    router.add_api_route("/" if _path.name == "index.html" else f"/web/{_path.name}", _serving(_path), methods=["GET"])

PATHS = frozenset(route.path for route in router.routes)  # type: ignore[attr-defined]
