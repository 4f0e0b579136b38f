"""The FastAPI app: routes, middleware, and the engine's life around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from octavo import __version__
from server.config import ServerConfig
from server.errors import error_response, http_error
from server.keys import KeyRing
from server.middleware import RequestMiddleware
from server.rate_limits import EXPOSED_HEADERS
from server.record import record_of
from server.routes import chat, completions, health, models, tokenize
from server.service import Service

if TYPE_CHECKING:
    from engine.async_engine import AsyncLLMEngine

# FastAPI's pages of the API load their scripts from elsewhere, and are blank where that cannot be reached. /openapi.json stays.
_NO_PAGES: dict[str, Any] = {"docs_url": None, "redoc_url": None}


def build_app(engine: AsyncLLMEngine, config: ServerConfig) -> FastAPI:
    """The app that serves `engine`. Whoever runs it calls `app.state.service.start()`, and shuts the engine down at the end.

    Raises ConfigError when the configured chat template or the file of API keys cannot be used.
    """
    service, keys = Service(engine, config), KeyRing(config)
    app = FastAPI(title="Octavo", version=__version__, root_path=config.root_path, redirect_slashes=False, **_NO_PAGES)
    app.state.service, app.state.keys = service, keys
    for family in (chat, completions, models, tokenize, health):
        app.include_router(family.router)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_middleware(RequestMiddleware, config=config, metrics=service.metrics, keys=keys)
    if config.cors_origins:
        exposed = ["x-request-id", "retry-after", "retry-after-ms", *EXPOSED_HEADERS]
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.cors_origins), allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
        )
    return app


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Routes that do not exist, or not for this method, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    answer = http_error(error.status_code, str(error.detail), request.method, request.url.path, headers)
    record_of(request).error = answer.message
    return error_response(answer)
