"""GET /debug/timeline and /debug/state: what the engine is doing, for a person who looks.

They name requests and what each costs, never its text. Where keys are asked for, or an admin has one, only an admin's opens them
(server/middleware.py).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request

from engine.snapshot import Snapshot
from engine.timeline import CAPACITY, StepRecord
from server.observability.perfetto import trace
from server.routes.generate import service_of

router = APIRouter()

_MOST_CELLS = 4096  # of the pool map


@router.get("/debug/timeline")
async def timeline(request: Request, steps: Annotated[int, Query(ge=1, le=CAPACITY)] = CAPACITY) -> dict[str, Any]:
    """The latest steps as a trace for https://ui.perfetto.dev: save it, and open it there."""
    service = service_of(request)
    service.check_open()
    records = msgspec.convert(await service.engine.call("timeline"), list[StepRecord])
    return trace(records[-steps:])


@router.get("/debug/state")
async def state(request: Request) -> dict[str, Any]:
    """The server's phase, every sequence, the pool of KV blocks as a map, and the engine's counts."""
    service = service_of(request)
    counts = msgspec.to_builtins(service.engine.stats)
    answer = {
        "phase": service.phase.value,
        "model": service.names[0],
        "engine_restarts": service.engine.num_restarts,
        "max_num_seqs": service.engine.config.seq_budget,
        "stats": counts,
    }
    if not service.engine.is_ready:
        return {**answer, "sequences": [], "block_size": 0, "blocks": []}
    seen = msgspec.convert(await service.engine.call("snapshot"), Snapshot)
    blocks = seen.block_holders
    stride = -(-len(blocks) // _MOST_CELLS) or 1  # a pool of very many blocks is shown by every so many'th
    return {
        **answer,
        "sequences": msgspec.to_builtins(seen.sequences),
        "block_size": seen.block_size,
        "blocks": blocks[::stride],
        "blocks_per_cell": stride,
    }


PATHS = frozenset(route.path for route in router.routes)  # type: ignore[attr-defined]
