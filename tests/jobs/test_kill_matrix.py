"""A small kill matrix; `make kill-matrix` runs the whole one."""

import random
from pathlib import Path

import pytest

from tests.conftest import DATABASES
from tests.jobs import kill_matrix

pytestmark = pytest.mark.long


@pytest.mark.parametrize("database", DATABASES)
def test_every_job_ends_once_and_succeeds_whatever_is_killed(
    request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    random.seed(7)
    server = request.getfixturevalue("postgres") if database == "postgresql" else None
    kills = ["worker", "postgres"] if server else ["child", "supervisor"]
    settings = kill_matrix.settings_of(tmp_path, server.database() if server else "")
    bodies = [{"text": f"steps 16 ok {i}"} for i in range(6)]
    outcome = kill_matrix.run(settings, bodies, kills, server)
    print(kill_matrix.report(database, outcome))
    assert set(outcome.states) == {"succeeded"}
    assert outcome.states.total() >= len(bodies)
    assert outcome.orphans == []
    assert outcome.wrong == []
    assert [r.kill for r in outcome.recoveries] == kills
