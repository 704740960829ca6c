"""The service's tables, and how they are reached: SQLite by default, PostgreSQL by URL.

The queue's own tables are no business of this module: nothing here or above reads them.
"""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from dbos import DBOS

from app.jobs import data_folder
from app.settings import Settings

METADATA = sa.MetaData()
# What a transaction fails with while the database is away: trying again later is right.
OUTAGE = (sa.exc.OperationalError, sa.exc.InterfaceError)
_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite counts up INTEGER keys only
_HASH = sa.String(64)
_ID = sa.String(32)
_OWNER = sa.String(63)  # whom models and jobs belong to; empty where there are no keys

blobs = sa.Table(
    "blobs",
    METADATA,
    sa.Column("sha256", _HASH, primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False),  # byte
    sa.Column("created", sa.Float, nullable=False),  # seconds since the epoch, as all times here
)

# Whoever brought a blob or refers to it: nobody else may know that it is there.
holdings = sa.Table(
    "holdings",
    METADATA,
    sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256", ondelete="CASCADE"), primary_key=True),
    sa.Column("owner", _OWNER, primary_key=True),
    sa.Column("claimed_until", sa.Float, nullable=False),  # kept until then even if nothing refers to it
)

keys = sa.Table(
    "keys",
    METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("hash", _HASH, nullable=False),  # SHA-256 of the secret, which nobody keeps
    sa.Column("name", sa.String(63), nullable=False),
    sa.Column("owner", _OWNER, nullable=False),
    sa.Column("scope", sa.String(10), nullable=False),  # read | submit | admin
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("used", sa.Float),
    sa.Column("revoked", sa.Float),
)

models = sa.Table(
    "models",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("name", sa.String(255), nullable=False, default="", server_default=""),  # of its file, at first
    sa.Column("size", sa.BigInteger, nullable=False),  # byte, of all its files
    sa.Column("state", sa.String(20), nullable=False),  # inspecting | ready | invalid
    sa.Column("report", sa.JSON),
    sa.Column("code", sa.String(60)),
    sa.Column("detail", sa.Text),
    sa.Column("pointer", sa.Text),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("owner", _OWNER, nullable=False, default="", index=True),
    sa.Column("used", sa.Float, nullable=False, default=0.0),  # when it was last sent or a job asked for
    sa.Column("origin", sa.JSON),  # operation and models that it was made of here; null for an upload
)

# The graph itself is the file with the empty name; the others are its external data.
model_files = sa.Table(
    "model_files",
    METADATA,
    sa.Column("model_id", _ID, sa.ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256"), nullable=False, index=True),
)

targets = sa.Table(
    "targets",
    METADATA,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
)

jobs = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),  # see child_request.Kind
    sa.Column("group_id", _ID, nullable=False, index=True),
    sa.Column("state", sa.String(20), nullable=False, index=True),
    sa.Column("model_id", _ID, nullable=False, index=True),
    sa.Column("target", sa.String(63), nullable=False),
    sa.Column("request", sa.JSON, nullable=False),  # target, options, bindings, limits
    sa.Column("queue", sa.String(100), nullable=False),
    sa.Column("enqueued", sa.Boolean, nullable=False, default=False),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),  # latest start; fences off older ones
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    sa.Column("phase", sa.String(60), nullable=False, default=""),
    sa.Column("done", sa.Integer, nullable=False, default=0),
    sa.Column("total", sa.Integer, nullable=False, default=0),
    sa.Column("summary", sa.JSON),
    sa.Column("code", sa.String(60)),
    sa.Column("detail", sa.Text),
    sa.Column("pointer", sa.Text),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("started", sa.Float),
    sa.Column("finished", sa.Float),
    sa.Column("owner", _OWNER, nullable=False, default="", index=True),
    sa.Column("worker", sa.String(100)),  # that made the latest start
    sa.Column("sent", sa.Integer, nullable=False, default=0),  # how often it was put in the queue
    sa.Column("cache_key", _HASH, index=True),  # equal for jobs that must have the same result
    sa.Column("cached_from", _ID),  # the job whose result this one shares
    sa.Column("trace", sa.String(55)),  # of the request that made it, as W3C's `traceparent`
)

job_groups = sa.Table(
    "job_groups",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("objective", sa.String(20), nullable=False),
    sa.Column("constraints", sa.JSON, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
)

labels = sa.Table(
    "labels",
    METADATA,
    sa.Column("subject", _ID, primary_key=True),  # a model or a job
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("value", sa.String(255), nullable=False),
    sa.Index("ix_labels_name_value", "name", "value"),
)

job_files = sa.Table(
    "job_files",
    METADATA,
    sa.Column("job_id", _ID, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("role", sa.String(10), primary_key=True),  # input | samples | model | artifact
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256"), nullable=False, index=True),
    sa.Column("size", sa.BigInteger, nullable=False),
)

job_events = sa.Table(
    "job_events",
    METADATA,
    sa.Column("id", _ROW_ID, primary_key=True, autoincrement=True),
    sa.Column("job_id", _ID, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("kind", sa.String(20), nullable=False),  # state | progress
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sqlite_autoincrement=True,  # ids are resume points, so a deleted one must not come back
)

workers = sa.Table(
    "workers",
    METADATA,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("seen", sa.Float, nullable=False),
    sa.Column("queues", sa.JSON, nullable=False),
)

# Models that answer under a name. They need neither their job nor its model any more.
deployments = sa.Table(
    "deployments",
    METADATA,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("owner", _OWNER, nullable=False),
    sa.Column("name", sa.String(63), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("job_id", _ID, nullable=False),
    sa.Column("model_id", _ID, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),  # options, bindings
    sa.Column("created", sa.Float, nullable=False),
    sa.UniqueConstraint("owner", "name", "version"),
)

deployment_files = sa.Table(
    "deployment_files",
    METADATA,
    sa.Column("deployment_id", _ID, sa.ForeignKey("deployments.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),  # empty for the graph itself
    sa.Column("sha256", _HASH, sa.ForeignKey("blobs.sha256"), nullable=False, index=True),
)

# Counters for monitoring: they only grow, whatever is deleted.
counters = sa.Table(
    "counters",
    METADATA,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("labels", sa.String(255), primary_key=True),  # a JSON object, its keys in order
    sa.Column("value", sa.Float, nullable=False),
)

idempotency = sa.Table(
    "idempotency",
    METADATA,
    sa.Column("owner", _OWNER, primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("body", _HASH, nullable=False),
    sa.Column("group_id", _ID, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
)


class Database:
    """Transactions on the service's tables.

    A write transaction of SQLite takes the write lock at its start: one that began as a reader
    could not wait for it.
    """

    def __init__(self, url: str) -> None:
        # A server may have gone and come back between two requests: connections are tried first.
        self._engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
        self._closed = False
        sa.event.listen(self._engine, "checkin", self._checked_in)
        self.sqlite = self._engine.dialect.name == "sqlite"
        if self.sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        self._writer = self._engine.execution_options(writes=True)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads."""
        with self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that is committed unless an exception leaves it."""
        with self._writer.begin() as connection:
            yield connection

    def lock(self, connection: sa.Connection, key: int) -> None:
        """Hold off every other write transaction that locks `key` until this one ends."""
        if not self.sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))

    def close(self) -> None:
        """Close all connections; one that another thread still uses is closed when that gives it back."""
        self._closed = True  # first: the pool that is disposed of would keep what comes back, open
        self._engine.dispose()

    def _checked_in(self, _connection: object, record: sa.pool.ConnectionPoolEntry) -> None:
        if self._closed:
            record.invalidate()


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins, not the driver
    for pragma in ("busy_timeout=10000", "journal_mode=wal", "synchronous=normal", "foreign_keys=on"):
        connection.execute(f"pragma {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("begin immediate" if writes else "begin")


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Wait for, then hold, an exclusive lock on a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _QueueConnection(sqlite3.Connection):
    """As `_prepare_sqlite` has it: what the disk forgets when the machine's power fails is sent again."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.execute("pragma synchronous=normal")


def queue_engine(settings: Settings) -> dict[str, Any]:
    """Arguments of SQLAlchemy's engine for the queue's database."""
    if settings.database_url:
        return {}
    return {"connect_args": {"factory": _QueueConnection}, "pool_pre_ping": False}


def _migrate_queue(url: str) -> None:
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("pragma journal_mode=wal")  # a property of the file; the queue sets none
    DBOS.migrate(url)


def _history() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


@cache
def _latest() -> str | None:
    return ScriptDirectory.from_config(_history()).get_current_head()


def is_current(connection: sa.Connection) -> bool:
    """True if the tables are those that this code knows."""
    return MigrationContext.configure(connection).get_current_revision() == _latest()


def migrate(settings: Settings) -> None:
    """Bring the tables up to date; safe to call from several processes at once."""
    data_folder.prepare(settings.data)
    config = _history()
    with (
        closing(Database(settings.jobs_database_url)) as database,
        file_lock(settings.data / "locks" / "migrate"),
    ):
        with database.write() as connection:
            database.lock(connection, 0)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        _migrate_queue(settings.queue_database_url)
