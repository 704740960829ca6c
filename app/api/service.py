"""Resources of every request: settings, tables, blobs, queue."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from app.api.core_operators import CoreOperators
from app.api.http.headers import HttpMetrics
from app.jobs.queue.dispatch import Dispatcher
from app.jobs.store.blobs import BlobStore
from app.jobs.store.database import Database
from app.serving.model_repository import ModelRepository
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class Service:
    """The parts below the API, made once per process.

    `stopping` ends long answers, `planning` lets one memory plan be made at a time, and `answering` counts
    the requests that are being answered, by key.
    """

    settings: Settings
    database: Database
    blobs: BlobStore
    dispatcher: Dispatcher
    http_metrics: HttpMetrics
    deployed_models: ModelRepository
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    planning: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    answering: Counter[str] = field(default_factory=Counter)
    core_operators: CoreOperators = field(default_factory=CoreOperators)

    @classmethod
    def open(cls, settings: Settings, http_metrics: HttpMetrics) -> "Service":
        """Connect to what the settings name; the tables must be there."""
        database = Database(settings.jobs_database_url)
        return cls(
            settings,
            database,
            BlobStore.of(settings, database, reserve=settings.reserve_bytes),
            Dispatcher(settings, database),
            http_metrics,
            ModelRepository(settings, database),
        )

    def address(self, path: str) -> str:
        """An address of this service, as its clients see it through a proxy."""
        return self.settings.root_path + path

    def close(self) -> None:
        """Close all connections."""
        self.dispatcher.close()
        self.database.close()


def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


ServiceOf = Annotated[Service, Depends(_service)]
