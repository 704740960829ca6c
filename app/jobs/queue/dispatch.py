"""Hands jobs to the queue: the sender's side, for processes that run none themselves."""

import logging
from collections.abc import Sequence

import sqlalchemy as sa
from dbos import DBOSClient, DBOSPortableJSONSerializer
from dbos import error as queue_error

from app.jobs.queue.queue_notify import QueueNotifier
from app.jobs.store import job_repository
from app.jobs.store.database import Database, jobs
from app.settings import Settings

APPLICATION = "stowplan"
# Recovery finds only jobs of its own version: a change needs an empty queue.
VERSION = "2"
WORKFLOW = "carry_out_job"
SERIALIZER = DBOSPortableJSONSerializer()  # not the library's default, which is pickle
CPU_QUEUE = "cpu"
INSPECT_QUEUE = "inspect"


_NOBODY = "-"  # the part of the queue for jobs without an owner
_GOING = ("PENDING", "ENQUEUED", "DELAYED")
logger = logging.getLogger("stowplan.jobs")


def ticket(job_id: str, sent: int) -> str:
    """The queue's name of a job that was sent that often before: the queue takes a name only once."""
    return f"{job_id}.{sent}" if sent else job_id


class Dispatcher:
    """Sends jobs by id; sending one twice is sending it once."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._client = DBOSClient(
            system_database_url=settings.queue_database_url,
            application_name=APPLICATION,
            serializer=SERIALIZER,
        )
        self._database = database
        self._notifier = QueueNotifier(settings, database)

    def send(self, ids: Sequence[str]) -> None:
        """Put jobs in their queues, each in the part of its owner."""
        query = (
            sa.select(jobs.c.id, jobs.c.queue, jobs.c.owner, jobs.c.sent)
            .where(jobs.c.id.in_(ids), jobs.c.state.not_in(job_repository.TERMINAL))
            .order_by(jobs.c.id)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            self._client.enqueue(
                {
                    "queue_name": row.queue,
                    "workflow_name": WORKFLOW,
                    "workflow_id": ticket(row.id, row.sent),
                    "app_version": VERSION,
                    "queue_partition_key": row.owner or _NOBODY,
                },
                row.id,
            )
        job_repository.mark_enqueued(self._database, [row.id for row in rows])
        if rows:
            self._notifier.notify(row.queue for row in rows)

    def try_send(self, ids: Sequence[str]) -> None:
        """Send jobs, or leave it to a worker when the queue does not answer: their rows are kept."""
        if not ids:
            return
        try:
            self.send(ids)
        except (sa.exc.SQLAlchemyError, queue_error.DBOSException):
            logger.exception("the queue took no jobs; a worker will send them")

    def withdraw(self, job_id: str) -> None:
        """Take a job that was cancelled before it began out of its queue; it would not start anyway."""
        try:
            with self._database.read() as connection:
                sent = connection.scalar(sa.select(jobs.c.sent).where(jobs.c.id == job_id))
            if sent:
                self._client.cancel_workflow(ticket(job_id, sent - 1))
        except (sa.exc.SQLAlchemyError, queue_error.DBOSException):
            logger.exception("the queue did not give job %s back", job_id)

    def forgotten(self, limit: int) -> list[str]:
        """Unfinished jobs that the queue thinks are over.

        None are, unless a worker failed between the two databases, or the queue's was set back.
        """
        query = (
            sa.select(jobs.c.id, jobs.c.sent)
            .where(jobs.c.enqueued, jobs.c.state.not_in(job_repository.TERMINAL))
            .order_by(jobs.c.id)
            .limit(limit)
        )
        with self._database.read() as connection:
            tickets = {ticket(row.id, row.sent - 1): row.id for row in connection.execute(query)}
        if not tickets:
            return []
        known = self._client.list_workflows(workflow_ids=list(tickets), load_input=False, load_output=False)
        going = {w.workflow_id for w in known if w.status in _GOING}
        return [job_id for name, job_id in tickets.items() if name not in going]

    def recover(self, dead: Sequence[str]) -> None:
        """Put the running jobs of dead workers back in their queues.

        The library does not look whose a job is: nobody else may do the same meanwhile.
        """
        if not dead:
            return
        running = self._client.list_workflows(
            executor_id=list(dead), status="PENDING", app_version=VERSION, load_input=False, load_output=False
        )
        for workflow in running:
            self._client.resume_workflow(workflow.workflow_id, queue_name=workflow.queue_name)
        self._notifier.notify(workflow.queue_name for workflow in running if workflow.queue_name)

    def close(self) -> None:
        """Close the connections to the queue."""
        self._client.destroy()
