"""Hands jobs to the queue: the sender's side, for processes that run none themselves."""

from collections.abc import Sequence

import sqlalchemy as sa
from dbos import DBOSClient

from app.jobs import ledger
from app.jobs.database import Database, jobs
from app.settings import Settings

APPLICATION = "stowplan"
# Recovery finds only jobs of its own version: a change needs an empty queue.
VERSION = "1"
WORKFLOW = "carry_out_job"
CPU_QUEUE = "cpu"
INSPECT_QUEUE = "inspect"


class Dispatcher:
    """Sends jobs by id; sending one twice is sending it once."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._client = DBOSClient(
            system_database_url=settings.queue_database_url, application_name=APPLICATION
        )
        self._database = database

    def send(self, ids: Sequence[str]) -> None:
        """Put jobs in their queues."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(jobs.c.id, jobs.c.queue).where(jobs.c.id.in_(ids))).all()
        queues = {row.id: row.queue for row in rows}
        for job_id in ids:
            self._client.enqueue(
                {
                    "queue_name": queues[job_id],
                    "workflow_name": WORKFLOW,
                    "workflow_id": job_id,
                    "app_version": VERSION,
                },
                job_id,
            )
        ledger.mark_enqueued(self._database, ids)

    def withdraw(self, job_id: str) -> None:
        """Take a job that was cancelled before it began out of its queue."""
        self._client.cancel_workflow(job_id)

    def close(self) -> None:
        """Close the connections to the queue."""
        self._client.destroy()
