"""Generated requests never make the service fail, and it answers as it says."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.api.main import create_app
from app.settings import Settings
from tests.jobs.service import Served

schema = schemathesis.openapi.from_dict(create_app(Settings()).openapi(), config=SchemathesisConfig())
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@schema.parametrize()
@settings(
    max_examples=8, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def test_no_request_makes_the_service_fail(case: schemathesis.Case, service: Served) -> None:
    case.call_and_validate(base_url=str(service.http.base_url), checks=list(CHECKS), timeout=60)
