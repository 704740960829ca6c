"""The HTTP application, and the process that serves it."""

import asyncio
import gc
import resource
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import FrameType

import uvicorn
from fastapi import FastAPI
from prometheus_client import disable_created_metrics
from pydantic.alias_generators import to_camel
from starlette.middleware.cors import CORSMiddleware

from app.api import pages
from app.api.http import errors
from app.api.http.auth_middleware import AuthMiddleware, check_binding
from app.api.http.body_limits import BodyLimit
from app.api.http.connection_limits import ConnectionLimiter, ConnectionLimits
from app.api.http.head_method import HeadOfGet
from app.api.http.headers import AnswerHeaders, HttpMetrics
from app.api.routes import ROUTERS, inference
from app.api.service import Service
from app.jobs.store.database import Database, migrate
from app.settings import Settings
from app.telemetry import logs, tracing

_DESCRIPTION = """ONNX in; storage types, implementations, layouts and memory planned, measured and proved.

Upload a model (`createModel`), ask for an optimization (`createJob`), follow it (`streamJobEvents`)
and download what it made (`getArtifact`). Every failure is a problem with a stable `code`
(RFC 9457); `listProblems` tells them all."""
_GRACE_SECONDS = 3
_TICK_SECONDS = 0.5  # a divisor of 1: the date of answers changes each second
_ACCEPTED = 64  # connections in one turn of the loop: each takes some 50 us, and all others wait meanwhile
_WAITING = 2048  # connections that the kernel keeps until they are accepted
_OTHER_FILES = 256  # than connections: tables, uploads, links to deployed models


def create_app(settings: Settings) -> FastAPI:
    """The application; its tables must be there when it starts."""
    # Without times of creation, which would double the number of series.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library gives it no types
    http_metrics = HttpMetrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = app.state.service = Service.open(settings, http_metrics)
        await service.deployed_models.start()
        yield
        await service.deployed_models.stop()
        service.close()

    app = FastAPI(
        title="Stowplan",
        version=version("stowplan"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: to_camel(route.name),  # `create_job` is `createJob`
    )
    # The last one added is the first to see a request.
    app.add_middleware(HeadOfGet)
    app.add_middleware(BodyLimit, nbytes=settings.max_json_bytes, seconds=settings.silence_seconds)
    app.add_middleware(AuthMiddleware, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["etag", "link", "location", "retry-after", "x-request-id"],
        )
    app.add_middleware(AnswerHeaders, http_metrics=http_metrics)
    errors.install(app)
    app.router.routes.extend(inference.ROUTES)
    for router in ROUTERS:
        app.include_router(router)
    pages.mount(app)
    return app


class _Server(uvicorn.Server):
    """Tells answers that wait to end when the server is asked to stop. Idle, it takes less than uvicorn's."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; asyncio has one number for the connections that it accepts in a turn and that may wait."""
        await super().startup(sockets)
        for server in self.servers:
            for transport in server.sockets:
                with transport.dup() as listener:
                    listener.listen(_WAITING)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        state = self.config.app.state  # type: ignore[union-attr]  # an app, not an import string
        if hasattr(state, "service"):
            state.service.stopping.set()
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Look whether to stop, and renew the date of answers, twice a second in place of ten times."""
        counter = 0  # tenths of seconds, as `on_tick` counts
        while not await self.on_tick(counter):
            await asyncio.sleep(_TICK_SECONDS)
            counter += round(_TICK_SECONDS * 10)


def check_access(settings: Settings) -> None:
    """Refuse to serve others without keys; the tables must be there.

    Raises:
        SettingsError: the address is not loopback, and no key is valid.
    """
    database = Database(settings.jobs_database_url)
    try:
        check_binding(settings, database)
    finally:
        database.close()


def _connection_limits(settings: Settings) -> ConnectionLimits:
    """Limits of the settings, with fewer connections where the process cannot have as many files open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files = settings.max_connections if most == resource.RLIM_INFINITY else most - _OTHER_FILES
    return ConnectionLimits(
        connections=max(1, min(settings.max_connections, files)),
        head_seconds=settings.head_seconds,
        silence_seconds=settings.silence_seconds,
    )


def run(settings_json: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = Settings.from_json(settings_json)
    logs.configure(settings, "api")
    tracing.configure(settings, "api")
    migrate(settings)
    check_access(settings)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path,
        http=ConnectionLimiter(_connection_limits(settings)).protocol(),
        ws="none",
        backlog=_ACCEPTED,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        server_header=False,
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Modules and routes stay: a collection that looks at them too stops the loop for 0.1 s.
    gc.collect()
    gc.freeze()
    _Server(config).run()
    tracing.close()
