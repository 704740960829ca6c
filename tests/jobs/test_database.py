"""Migrations make the tables that the code uses, from anywhere and at any number of times."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from app.jobs.database import METADATA, Database, migrate, targets
from app.settings import Settings


def test_migrations_make_the_tables_that_the_code_has(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    migrate(settings)
    database = Database(settings.jobs_database_url)
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    database.close()


def test_many_may_migrate_at_once(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
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


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    migrate(settings)
    database = Database(settings.jobs_database_url)

    def fail() -> None:
        with database.write() as connection:
            connection.execute(targets.insert().values(name="t", spec={}, created=0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with database.read() as connection:
        assert connection.execute(sa.select(targets)).all() == []
    database.close()


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    migrate(settings)
    database = Database(settings.jobs_database_url)

    def add(i: int) -> None:
        with database.write() as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(targets))
            connection.execute(targets.insert().values(name=f"t{count}", spec={}, created=i))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(40)))  # a lost update would make a name come twice
    database.close()
