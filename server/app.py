"""The FastAPI app: routes, middleware, and the engine's life around them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from octavo import __version__
from server.access.keys import KeyRing
from server.access.rate_limits import EXPOSED_HEADERS
from server.background import BackgroundRuns
from server.batches.runner import BatchRunner
from server.batches.store import BatchStore
from server.config import ServerConfig
from server.errors import ApiError, http_error
from server.middleware import RequestMiddleware
from server.observability.logs import log_access
from server.observability.record import record_of
from server.observability.tracing import Tracer
from server.response_store import ResponseStore
from server.routes import admin, batches, chat, completions, debug, embeddings, health, messages, models, openapi, page, tokenize
from server.routes import responses as responses_routes
from server.service import Phase, Service

if TYPE_CHECKING:
    from engine.async_engine import AsyncLLMEngine

# FastAPI's pages of the API load their scripts from elsewhere, and are blank where that cannot be reached. /openapi.json is our own.
_NO_PAGES: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}
# Generated clients name their functions by the ids of operations, which are the names of the functions here.
_OPERATIONS: dict[str, Any] = {"generate_unique_id_function": lambda route: route.name}


def build_app(engine: AsyncLLMEngine, config: ServerConfig) -> FastAPI:
    """The app that serves `engine`. Whoever runs it calls `app.state.service.start()`, and at the end shuts the engine down and closes
    `app.state.responses`.

    Raises ConfigError when the configured chat template, file of API keys or response store cannot be used, or traces cannot be made.
    """
    service, keys = Service(engine, config), KeyRing(config)
    responses = ResponseStore(config.response_store, config.max_stored_responses)
    app = FastAPI(title="Octavo", version=__version__, root_path=config.root_path, redirect_slashes=False, **_NO_PAGES, **_OPERATIONS)
    app.state.service, app.state.keys, app.state.openapi = service, keys, {}
    app.state.responses, app.state.background = responses, BackgroundRuns()
    app.state.batches = _batch_runner(app, engine, config)
    for family in (admin, chat, completions, responses_routes, messages, embeddings, batches, models, tokenize, health, debug, openapi):
        app.include_router(family.router)
    if config.web_page:
        app.include_router(page.router)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_bad_query)

    def is_draining() -> bool:
        return service.phase is Phase.DRAINING

    app.state.tracer = None if config.otlp_traces_endpoint is None else Tracer(config.otlp_traces_endpoint, service.names[0])
    observers = [
        service.metrics.request_ended,
        *([log_access] if config.access_log else []),
        *([] if app.state.tracer is None else [app.state.tracer.request_ended]),
    ]
    app.add_middleware(RequestMiddleware, config=config, keys=keys, is_draining=is_draining, observers=observers)
    if config.cors_origins:
        exposed = ["x-request-id", "retry-after", "retry-after-ms", *EXPOSED_HEADERS]
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.cors_origins), allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
        )
    return app


def _batch_runner(app: FastAPI, engine: AsyncLLMEngine, config: ServerConfig) -> BatchRunner | None:
    if config.batch_dir is None:
        return None
    store = BatchStore(Path(config.batch_dir).expanduser(), config.max_batch_storage)
    # Half of the places in the running batch are left to those who wait for their answers.
    return BatchRunner(store, app, min(config.batch_concurrency, max(1, engine.config.seq_budget // 2)))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Routes that do not exist, or not for this method, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    answer = http_error(error.status_code, str(error.detail), request.method, request.url.path, headers)
    record_of(request).error = answer.message
    return record_of(request).dialect.error_response(answer)


async def _answer_bad_query(request: Request, error: Exception) -> Response:
    """A parameter of the URL that is not what it must be. Bodies are read elsewhere."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"][1:]))
    answer = ApiError(400, f"{name}: {first['msg'][:1].lower()}{first['msg'][1:]}", param=name)
    record_of(request).error = answer.message
    return record_of(request).dialect.error_response(answer)
