"""All deployed models, as one API process reaches them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import Metric

from app.jobs.store import deployments
from app.jobs.store.auth_context import Caller, acting_for, current
from app.jobs.store.database import OUTAGE, Database
from app.serving import channel, metrics
from app.serving.executor_client import Bounds, ExecutorClient, Reply
from app.serving.oip_codec import InferenceError
from app.settings import Settings

_LOOK_SECONDS = 0.1  # between two tries to reach processes that are not there
_REFRESH_SECONDS = 5.0  # between two looks at what others deployed; what this process deploys it knows
_ARENA_BODIES = 4  # largest bodies that an arena holds
_MIN_ARENA = 64 << 20  # byte
_RANKS = {"ready": 0, "loading": 1, "starting": 1}  # by state of a version; all others come last
logger = logging.getLogger("stowplan.serving")


@dataclass(frozen=True, slots=True)
class Deployed:
    """One version of a deployed model."""

    id: str
    owner: str
    name: str
    version: int
    client: ExecutorClient
    metrics: metrics.Metrics

    async def infer(
        self, body: AsyncIterable[bytes], nbytes: int, header: int | None, waited: float = 0.0
    ) -> Reply:
        """Send a request to it, see `ExecutorClient.infer`.

        Raises:
            InferenceError: there is no answer.
        """
        began = time.monotonic() - waited
        try:
            reply = await self.client.infer(body, nbytes, header, waited)
        except InferenceError as error:
            self.metrics.note(error.status, time.monotonic() - began, None, None, None)
            raise
        self.metrics.note(reply.status, time.monotonic() - began, reply.waited, reply.held, reply.ran)
        return reply


class ModelRepository:
    """Knows what is deployed, and keeps connections to the processes of this machine."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._known: dict[str, Deployed] = {}
        self._by_name: dict[str, list[Deployed]] = {}  # latest version first
        self._task: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()
        self._changed = asyncio.Event()  # a process is to be reached
        self._bounds = Bounds(
            body_nbytes=settings.max_infer_bytes,
            arena_nbytes=max(_MIN_ARENA, _ARENA_BODIES * settings.max_infer_bytes),
            waiting=settings.max_infer_waiting,
            seconds=settings.infer_seconds,
        )

    async def start(self) -> None:
        """Begin to follow what is deployed."""
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Let go of all processes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for deployed in self._known.values():
            deployed.client.close()

    def visible(self) -> list[Deployed]:
        """The caller's, by name and version."""
        caller = current()
        rows = (d for d in self._known.values() if caller.may("admin") or d.owner == caller.owner)
        return sorted(rows, key=lambda d: (d.name, d.owner, d.version))

    def get(self, identifier: str) -> Deployed | None:
        """A deployment by its id, if this process knows it yet."""
        return self._known.get(identifier)

    def find(self, name: str, version: str | None) -> Deployed:
        """The caller's model of a name: his own first, for an administrator then that of others.

        Without a version, the latest one that is ready; where none is, the latest that may become so.

        Raises:
            InferenceError: he has none.
        """
        caller = current()
        rows = [row for row in self._by_name.get(name, ()) if version in (None, str(row.version))]
        for own in (True, False) if caller.may("admin") else (True,):
            found = [row for row in rows if (row.owner == caller.owner) == own]
            if found:
                same_owner = (row for row in found if row.owner == found[0].owner)
                return min(same_owner, key=lambda d: _RANKS.get(d.client.state, len(_RANKS)))
        which = "" if version is None else f" version {version!r} of"
        raise InferenceError(f"there is no{which} model {name!r}", 404)

    def versions(self, of: Deployed) -> list[str]:
        """Versions of the same name and owner, oldest first."""
        rows = self._by_name.get(of.name, ())
        return [str(row.version) for row in reversed(rows) if row.owner == of.owner]

    def not_ready(self) -> int:
        """Number of models of which no version answers yet; one whose versions all failed does not count."""
        states: dict[tuple[str, str], set[str]] = {}
        for d in self._known.values():
            states.setdefault((d.owner, d.name), set()).add(d.client.state)
        return sum("ready" not in found and found != {"failed"} for found in states.values())

    def collect(self) -> list[Metric]:
        """Metrics of the caller's models."""

        def labels(d: Deployed) -> dict[str, str]:
            owner = {"owner": d.owner} if d.owner else {}
            return {"model": d.name, "version": str(d.version)} | owner

        return metrics.merged((labels(d), d.metrics) for d in self.visible())

    async def _follow(self) -> None:
        refreshed = time.monotonic()
        while True:
            connected = all(deployed.client.is_connected for deployed in self._known.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_SECONDS if connected else _LOOK_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            if time.monotonic() > refreshed + _REFRESH_SECONDS:
                refreshed = time.monotonic()
                try:
                    await self.refresh()
                except Exception:  # nothing else would look again
                    logger.exception("what is deployed could not be read")
            for deployed in self._known.values():
                deployed.client.connect()

    async def refresh(self) -> None:
        """Look at once at what is deployed; while the database is away, all stays as it was."""

        def look() -> list[dict[str, Any]]:
            with acting_for(Caller()), self._database.read() as connection:
                return [dict(row) for row in deployments.listed(connection)]

        async with self._refreshing:
            try:
                rows = await asyncio.to_thread(look)
            except OUTAGE as error:
                logger.warning("the database does not tell what is deployed: %s", error)
            else:
                self._update(rows)

    def _update(self, rows: list[dict[str, Any]]) -> None:
        known = {row["id"]: self._known.get(row["id"]) or self._deployed(row) for row in rows}
        for identifier, deployed in self._known.items():
            if identifier not in known:
                deployed.client.retire()
        self._changed.set()
        self._known = known
        self._by_name = {}
        for deployed in sorted(known.values(), key=lambda d: (d.name, d.owner, -d.version)):
            self._by_name.setdefault(deployed.name, []).append(deployed)

    def _deployed(self, row: Mapping[str, Any]) -> Deployed:
        path = channel.socket_path(self._settings.data, row["id"])
        client = ExecutorClient(path, self._bounds, self._changed.set)
        return Deployed(row["id"], row["owner"], row["name"], row["version"], client, metrics.Metrics(client))
