"""GET /health, /ready, /metrics and /version: what operators and their machines look at."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from octavo import __version__
from server.routes.generate import service_of
from server.service import Phase

router = APIRouter()


@router.get("/health")
async def health() -> dict[str, Any]:
    """The process is up, whatever it can do."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """200 when requests would be served; 503 and the reason when not."""
    phase = service_of(request).phase
    return JSONResponse({"status": phase.value}, 200 if phase is Phase.READY else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    collected = service_of(request).metrics
    return Response(collected.render(), media_type=collected.content_type)


@router.get("/version")
async def version() -> dict[str, Any]:
    return {"version": __version__}
