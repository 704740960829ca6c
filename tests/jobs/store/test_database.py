"""Migrations make the tables that the code uses, from anywhere and at any number of times."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from app.jobs.store import job_repository
from app.jobs.store.blobs import sizes
from app.jobs.store.database import METADATA, Database, blobs, migrate, models, targets
from app.settings import Settings


def test_migrations_make_the_tables_that_the_code_has(database: Database) -> None:
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_many_may_migrate_at_once(settings: Settings) -> None:
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(migrate, settings) for _ in range(3)]:
            future.result()


def test_both_files_keep_a_write_ahead_log(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    migrate(settings)
    for url in (settings.jobs_database_url, settings.queue_database_url):
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
        engine.dispose()


def test_a_write_that_fails_leaves_nothing(database: Database) -> None:

    def fail() -> None:
        with database.write() as connection:
            connection.execute(targets.insert().values(name="t", spec={}, created=0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with database.read() as connection:
        assert connection.execute(sa.select(targets)).all() == []


def test_writers_wait_for_each_other(database: Database) -> None:

    def add(i: int) -> None:
        with database.write() as connection:
            database.lock(connection, 99)  # SQLite has one writer anyway
            count = connection.scalar(sa.select(sa.func.count()).select_from(targets))
            connection.execute(targets.insert().values(name=f"t{count}", spec={}, created=i))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(40)))  # a lost update would make a name come twice


def test_a_database_of_the_first_version_keeps_its_rows(settings: Settings) -> None:
    database = Database(settings.jobs_database_url)
    with database.write() as connection:
        connection.execute(models.insert().values(id="m", size=1, state="ready", created=5))
        make = {"kind": "optimize", "model_id": "m", "target": "t", "queue": "cpu", "request": {}}
        job_id = job_repository.create(connection, [job_repository.Draft(**make)])[0]  # type: ignore[arg-type]
        connection.execute(blobs.insert().values(sha256="0" * 64, size=3, created=1))
    to_revision(settings, "0001")
    to_revision(settings, "head")
    with database.read() as connection:
        row = job_repository.find(connection, job_id)
        assert (row["owner"], row["state"], row["enqueued"], row["sent"]) == ("", "queued", False, 1)
        assert connection.scalar(sa.select(models.c.used)) == 5
        assert sizes(connection, ["0" * 64]) == {"0" * 64: 3}
    database.close()


def to_revision(settings: Settings, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(job_repository.__file__).parent / "migrations"))
    database = Database(settings.jobs_database_url)
    with database.write() as connection:
        config.attributes["connection"] = connection
        (command.upgrade if revision == "head" else command.downgrade)(config, revision)
    database.close()


def test_a_connection_in_use_is_closed_when_it_comes_back_after_the_end(settings: Settings) -> None:
    database = Database(settings.jobs_database_url)
    with database.read() as connection:
        driver = connection.connection.driver_connection
        database.close()
        assert connection.scalar(sa.select(1)) == 1
    assert driver is not None
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        driver.execute("select 1")
