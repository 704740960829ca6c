"""What the environment may say, and what it may not."""

from pathlib import Path

import pytest

from app.settings import Settings, SettingsError, machine_memory


def test_each_setting_is_read_with_its_type() -> None:
    found = Settings.from_environment(
        {"STOWPLAN_DATA": "/tmp/x", "STOWPLAN_PORT": "81", "STOWPLAN_JOB_SECONDS": "2.5", "OTHER": "1"}
    )
    assert found == Settings(data=Path("/tmp/x"), port=81, job_seconds=2.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOBS", "http://bucket"),
        ("BLOBS", "s3:///prefix"),
        ("PORT", "eighty"),
        ("PORT", "70000"),
        ("WORKERS", "0"),
        ("JOB_SECONDS", "-1"),
        ("WORKERS", "1.5"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"STOWPLAN_{name}.*{value}"):
        Settings.from_environment({f"STOWPLAN_{name}": value})


def test_the_environment_cannot_choose_the_engine() -> None:
    assert Settings.from_environment({"STOWPLAN_ENGINE": "os"}).engine == "app.engine"


def test_settings_survive_json(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, workers=3, engine="tests.jobs.fake_engine")
    assert Settings.from_json(settings.to_json()).job_memory_bytes == settings.job_memory_bytes


def test_one_database_url_serves_both_kinds_of_tables() -> None:
    settings = Settings(database_url="postgresql://u:p@h/d")
    assert settings.jobs_database_url == "postgresql+psycopg://u:p@h/d"
    assert settings.queue_database_url == "postgresql://u:p@h/d"


def test_without_a_database_url_each_has_a_file(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    assert settings.jobs_database_url == f"sqlite:///{tmp_path}/stowplan.db"
    assert settings.queue_database_url == f"sqlite:///{tmp_path}/queue.db"


@pytest.mark.parametrize("changes", [{}, {"workers": 1}, {"workers": 7, "max_deployments": 40}])
def test_jobs_and_deployed_models_together_stay_below_the_memory_of_the_machine(
    changes: dict[str, int],
) -> None:
    settings = Settings(**changes)  # type: ignore[arg-type]  # they are numbers
    jobs = settings.workers * settings.job_memory_bytes
    assert jobs + settings.max_deployments * settings.executor_memory_bytes < machine_memory()
    assert Settings.from_json(settings.to_json()).job_memory_bytes == settings.job_memory_bytes


def test_a_limit_of_memory_that_is_given_stays() -> None:
    given = {"STOWPLAN_JOB_MEMORY_BYTES": "123456789", "STOWPLAN_WORKERS": "3"}
    settings = Settings.from_environment(given)
    assert settings.job_memory_bytes == 123456789
