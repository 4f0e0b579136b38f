"""What operators do to a running server: POST /reset_prefix_cache, /sleep, /wake_up, /log_level, /start_profile, /stop_profile; GET
/is_sleeping, /log_level.

The middleware lets nobody here without an admin key, and denies that these exist where there is none (server/middleware.py).
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request

from engine.errors import EngineDeadError, OctavoError
from server.errors import ApiError
from server.observability.logs import LEVELS, logger
from server.routes.generate import service_of

router = APIRouter()


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> dict[str, Any]:
    """Forget all cached prefixes. Running requests keep what they hold."""
    service = service_of(request)
    service.check_open()
    await service.engine.reset_prefix_cache()
    return {"success": True}


@router.post("/sleep")
async def sleep(request: Request) -> dict[str, Any]:
    """Free the KV cache until /wake_up. `level` can only be 1; `mode` is wait (for running requests, the default) or abort."""
    service = service_of(request)
    level, mode = request.query_params.get("level", "1"), request.query_params.get("mode", "wait")
    if level != "1":
        raise ApiError(400, "level must be 1: the KV cache is freed, and the weights stay where they are", param="level")
    if mode not in ("wait", "abort"):
        raise ApiError(400, "mode must be wait or abort", param="mode")
    await service.sleep(service.config.grace_period if mode == "wait" else 0.0)
    return {"is_sleeping": True}


@router.post("/wake_up")
async def wake_up(request: Request) -> dict[str, Any]:
    """Take the memory of the KV cache again, and serve."""
    await service_of(request).wake_up()
    return {"is_sleeping": False}


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> dict[str, Any]:
    return {"is_sleeping": service_of(request).is_asleep}


@router.get("/log_level")
async def get_log_level() -> dict[str, Any]:
    return {"level": logging.getLevelName(logger.level).lower()}


@router.post("/log_level")
async def set_log_level(request: Request) -> dict[str, Any]:
    """`level` as in --log-level, until the server ends."""
    level = request.query_params.get("level", "")
    if level not in LEVELS:
        raise ApiError(400, f"level must be one of {', '.join(LEVELS)}", param="level")
    logger.setLevel(level.upper())
    return {"level": level}


@router.post("/start_profile")
async def start_profile(request: Request) -> dict[str, Any]:
    """Profile the engine until /stop_profile. Needs --profile-dir."""
    await _profile(request, "start_profile")
    return {"success": True}


@router.post("/stop_profile")
async def stop_profile(request: Request) -> dict[str, Any]:
    """Write the profile; `path` says where, on the server."""
    return {"path": await _profile(request, "stop_profile")}


async def _profile(request: Request, method: str) -> Any:
    service = service_of(request)
    service.check_open()
    try:
        return await service.engine.call(method)
    except EngineDeadError:
        raise
    except OctavoError as refusal:
        raise ApiError(400, str(refusal)) from refusal


PATHS = frozenset(route.path for route in router.routes)  # type: ignore[attr-defined]
