"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from server.routes.generate import service_of
from server.service import Service

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The model, under each of its names."""
    service = service_of(request)
    return {"object": "list", "data": [_card(service, name) for name in service.names]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """One model. Names may hold slashes."""
    service = service_of(request)
    return _card(service, service.resolve_model(name))


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "octavo",
        "root": service.names[0],
        "parent": None,
        "max_model_len": service.engine.max_model_len,
    }
