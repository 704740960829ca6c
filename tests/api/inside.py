"""The API alone, inside the test's process: no worker takes its jobs."""

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from app.api.main import create_app
from app.api.service import Service
from app.jobs.store import keys
from app.jobs.store.database import Database
from app.settings import Settings
from tests.jobs.service import free_port


@functools.cache
def description() -> dict[str, Any]:
    """The description of the API; nobody changes it, and making it takes most of a second."""
    return create_app(Settings()).openapi()


class Inside:
    """A running API; `http` shows no key."""

    def __init__(self, settings: Settings, app: FastAPI, port: int) -> None:
        self.settings = settings
        self.app = app
        self._url = f"http://127.0.0.1:{port}"
        self._clients = contextlib.ExitStack()
        self.http = self.client()

    @property
    def service(self) -> Service:
        return self.app.state.service  # type: ignore[no-any-return]

    @property
    def database(self) -> Database:
        return self.service.database

    def client(self, key: str | None = None, **headers: str) -> httpx.Client:
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        return self._clients.enter_context(httpx.Client(base_url=self._url, headers=headers, timeout=60.0))

    def key(self, scope: str, owner: str | None = None) -> httpx.Client:
        """A client with a new key."""
        with self.database.write() as connection:
            if scope != "admin" and not keys.exist(connection):
                keys.create(connection, "first", "admin")
            return self.client(keys.create(connection, scope, scope, owner)[1])

    def close(self) -> None:
        self._clients.close()


@contextlib.contextmanager
def inside(settings: Settings, app: FastAPI | None = None) -> Iterator[Inside]:
    """Serve until the context is left; the tables must be there."""
    port = free_port()
    app = app or create_app(settings)
    how = {"log_level": "error", "timeout_graceful_shutdown": 1, "root_path": settings.root_path}
    server = uvicorn.Server(uvicorn.Config(app, port=port, **how))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    running = Inside(settings, app, port)
    try:
        yield running
    finally:
        running.close()
        server.should_exit = True
        thread.join(20)
