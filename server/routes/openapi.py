"""GET /openapi.json."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.routing import BaseRoute

from octavo import __version__

router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
async def get_document(request: Request) -> Response:
    """What every endpoint takes and answers. Written when it is first asked for, and on another thread, as it takes a while."""
    app, with_admin = request.app, request.app.state.keys.knows_admins
    if with_admin not in app.state.openapi:
        app.state.openapi[with_admin] = await asyncio.to_thread(_document, app.routes, app.root_path, with_admin)
    return Response(app.state.openapi[with_admin], media_type="application/json")


def _document(routes: list[BaseRoute], root_path: str, with_admin: bool) -> bytes:
    # The types of all answers are of no use but here.
    from server.openapi.document import build_document

    return msgspec.json.encode(build_document(routes, __version__, root_path, with_admin))
