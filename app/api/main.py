"""The HTTP application, and the process that serves it."""

import logging
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import (
    artifacts,
    errors,
    jobs,
    memory_plans,
    models,
    operators,
    pages,
    system,
    targets,
)
from app.api.limits import BodyLimit
from app.api.service import Service
from app.jobs.database import migrate
from app.settings import Settings

_DESCRIPTION = """ONNX in; storage types, implementations, layouts and memory planned, measured and proved.

Upload a model (`createModel`), ask for an optimization (`createJob`), follow it (`streamJobEvents`)
and download what it made (`getArtifact`). Every failure is a problem with a stable `code`
(RFC 9457); `listProblems` tells them all."""
_GRACE_SECONDS = 3


class _RequestId:
    """Gives every request an id, which problems, headers and logs carry."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = secrets.token_hex(8)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = scope["request_id"]
            await send(message)

        await self._app(scope, receive, send_with_id)


def create_app(settings: Settings) -> FastAPI:
    """The application; its tables must be there when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = Service.open(settings)
        yield
        app.state.service.close()

    app = FastAPI(
        title="Stowplan",
        version=version("stowplan"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_middleware(BodyLimit, nbytes=settings.max_json_bytes)
    app.add_middleware(_RequestId)
    errors.install(app)
    for module in (models, targets, jobs, artifacts, memory_plans, operators, system):
        app.include_router(module.router)
    pages.mount(app)
    return app


class _Server(uvicorn.Server):
    """Tells answers that wait to end when the server is asked to stop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        state = self.config.app.state  # type: ignore[union-attr]  # an app, not an import string
        if hasattr(state, "service"):
            state.service.stopping.set()
        super().handle_exit(sig, frame)


def run(settings_json: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = Settings.from_json(settings_json)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    migrate(settings)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        server_header=False,
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Server(config).run()
