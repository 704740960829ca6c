"""What the service may be told from outside: folders, addresses, limits. The only reader of the environment.

Each field of `Settings` but `engine` is read from `STOWPLAN_<NAME>`. Processes of one service hand
the settings on as JSON, so that all of them see what the first one read.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

DEFAULT_PORT = 8000
PREFIX = "STOWPLAN_"
# Set by code only: which module does the work is no matter of deployment.
NOT_FROM_ENVIRONMENT = ("engine",)


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, what was expected and what was found."""


def _default_job_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one service.

    Attributes:
        data: the one folder that everything durable lives under.
        host: address that the API listens on.
        port: port that the API listens on.
        database_url: of the database; empty means SQLite files in the data folder.
        workers: worker processes that `serve` starts; each runs one job at a time.
        max_model_bytes: largest blob or model accepted.
        max_json_bytes: largest JSON body accepted.
        max_artifact_bytes: largest file a job may write.
        job_seconds: hard time limit of one job, and the most that a job may ask for.
        job_memory_bytes: hard memory limit of one job, and the most that a job may ask for.
        inspect_seconds: hard time limit of an inspection or a validation.
        wait_for_target_seconds: how long a job may wait for a worker on its target.
        claim_seconds: how long an uploaded blob is kept that nothing refers to.
        dead_seconds: silence after which a worker counts as dead, and its jobs go to others.
        warm_children: processes that each worker keeps ready for its next job.
        engine: module with `inspect`, `validate` and `optimize`.
    """

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    database_url: str = ""
    workers: int = 2
    max_model_bytes: int = 8 * 2**30
    max_json_bytes: int = 4 * 2**20
    max_artifact_bytes: int = 16 * 2**30
    job_seconds: float = 1800.0
    job_memory_bytes: int = field(default_factory=_default_job_memory)
    inspect_seconds: float = 120.0
    wait_for_target_seconds: float = 24 * 3600.0
    claim_seconds: float = 3600.0
    dead_seconds: float = 15.0
    warm_children: int = 1
    engine: str = "app.engine"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise SettingsError(f"{PREFIX}PORT: expected 0 to 65535, found {self.port}")
        for name in ("workers", "max_model_bytes", "max_json_bytes", "job_memory_bytes"):
            if getattr(self, name) < 1:
                raise SettingsError(
                    f"{PREFIX}{name.upper()}: expected at least 1, found {getattr(self, name)}"
                )
        for name in ("job_seconds", "inspect_seconds"):
            if getattr(self, name) <= 0:
                raise SettingsError(
                    f"{PREFIX}{name.upper()}: expected a positive number, found {getattr(self, name)}"
                )

    @property
    def jobs_database_url(self) -> str:
        """URL of the service's own tables."""
        if not self.database_url:
            return f"sqlite:///{self.data.absolute() / 'stowplan.db'}"
        scheme, _, rest = self.database_url.partition("://")
        return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else self.database_url

    @property
    def queue_database_url(self) -> str:
        """URL of the queue's tables: a file of their own in SQLite, a schema of their own elsewhere."""
        return self.database_url or f"sqlite:///{self.data.absolute() / 'queue.db'}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The settings that `STOWPLAN_*` variables give; the others keep their defaults.

        Raises:
            SettingsError: a value is no number where one is expected, or out of range.
        """
        found = os.environ if environment is None else environment  # noqa: TID251  this is the reader
        given: dict[str, Any] = {}
        for row in fields(cls):
            text = found.get(PREFIX + row.name.upper())
            if text is None or row.name in NOT_FROM_ENVIRONMENT:
                continue
            try:
                given[row.name] = row.type(text) if isinstance(row.type, type) else text
            except ValueError as error:
                raise SettingsError(
                    f"{PREFIX}{row.name.upper()}: expected {row.type.__name__}, found {text!r}"  # type: ignore[union-attr]  # a type, as tested above
                ) from error
        return cls(**given)

    def to_json(self) -> str:
        """All settings, for another process of the same service."""
        return json.dumps(asdict(self) | {"data": str(self.data.absolute())})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote."""
        given = json.loads(text)
        return cls(**given | {"data": Path(given["data"])})
