"""Requests that are generated from the description of the API, to each of its operations.

`test_fuzz.py` runs these tests in a process of their own.
"""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.jobs.store import keys
from app.jobs.store.database import Database, migrate
from app.settings import Settings
from tests.api.inside import description
from tests.jobs.service import ENGINE, Served, serve

schema = schemathesis.openapi.from_dict(description(), config=SchemathesisConfig())
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A service of its own, and the text of an administrator's key: what is sent here makes keys."""
    data = tmp_path_factory.mktemp("keyed")
    settings = Settings(data=data)
    migrate(settings)
    database = Database(settings.jobs_database_url)
    with database.write() as connection:
        text = keys.create(connection, "fuzz", "admin")[1]
    database.close()
    with serve(data, engine=ENGINE, workers=1) as served:
        yield served, text


@schema.parametrize()
@settings(
    max_examples=8, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def test_no_request_makes_the_service_fail(case: schemathesis.Case, keyed: tuple[Served, str]) -> None:
    service, text = keyed
    case.call_and_validate(
        base_url=str(service.http.base_url),
        headers={"authorization": f"Bearer {text}"},
        checks=list(CHECKS),
        timeout=60,
    )
