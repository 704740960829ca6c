"""Which executor processes a machine shall run: one for each version of each deployed model."""

import logging
import shutil
from pathlib import Path

from app.jobs.store import deployments
from app.jobs.store.blobs import BlobStore
from app.jobs.store.database import OUTAGE, Database
from app.jobs.supervisor import ProcessSpec
from app.serving import channel
from app.serving.executor_config import ExecutorConfig
from app.settings import Settings

EXECUTOR = "app.serving.executor:run"
logger = logging.getLogger("stowplan.serving")


class Executors:
    """Lists the processes for the supervisor; while the database is away, those that it listed last."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database = Database(settings.jobs_database_url)
        self._blobs = BlobStore(settings.data / "blobs", self._database)
        self._last: list[ProcessSpec] = []

    def __call__(self) -> list[ProcessSpec]:
        """The processes that shall run now."""
        try:
            with self._database.read() as connection:
                rows = deployments.listed(connection)
                if [row["id"] for row in rows] != [spec.name.split()[1] for spec in self._last]:
                    files = {row["id"]: deployments.files_of(connection, row["id"]) for row in rows}
                    self._last = [self._spec(row, files[row["id"]]) for row in rows]
                    self._tidy({row["id"] for row in rows})
        except OUTAGE as error:
            logger.warning("the database does not tell what is deployed: %s", error)
        return self._last

    def _spec(self, row: deployments.Row, files: dict[str, str]) -> ProcessSpec:
        settings, serving = self._settings, deployments.serving_of(row)
        own = serving["threads"] is None  # the job's threads
        paths = {name: str(self._blobs.path(sha256).absolute()) for name, sha256 in files.items()}
        config = ExecutorConfig(
            id=row["id"],
            name=row["name"],
            version=str(row["version"]),
            data=str(settings.data.absolute()),
            engine=settings.engine,
            model=paths.pop(""),
            external=paths,
            options=row["request"]["options"] | ({} if own else {"threads": serving["threads"]}),
            bindings=row["request"]["bindings"],
            kernels=str((settings.data / "kernels").absolute()),
            weights=str((settings.data / "weights").absolute()),
            tune=own,
            instances=serving["instances"],
            batches=tuple(serving["batch_sizes"]),
            batch_seconds=serving["batch_delay_ms"] * 1e-3,
            programs=settings.max_programs,
            infer_seconds=settings.infer_seconds,
            build_seconds=settings.job_seconds,
            memory_bytes=settings.executor_memory_bytes,
            log=(settings.log_format, settings.log_level),
        )
        return ProcessSpec(
            f"executor {row['id']} {row['name']}:{row['version']}", EXECUTOR, config.to_json(), confined=True
        )

    def _tidy(self, known: set[str]) -> None:
        """Remove the sockets and folders of what is deployed no more."""
        folder: Path = channel.folder_of(self._settings.data)
        for path in folder.iterdir() if folder.exists() else ():
            if path.stem in known:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
