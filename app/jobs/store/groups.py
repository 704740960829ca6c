"""Jobs that were asked for together, and what they are compared by."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from app.jobs.comparison import Constraints, Objective
from app.jobs.errors import JobGroupNotFoundError
from app.jobs.store import job_repository
from app.jobs.store.auth_context import visible
from app.jobs.store.database import job_groups, jobs


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs of a group, in the order they were asked for."""

    id: str
    objective: Objective
    constraints: Constraints
    jobs: Sequence[job_repository.Row]

    @property
    def is_over(self) -> bool:
        """True if all its jobs have ended."""
        return all(job["state"] in job_repository.TERMINAL for job in self.jobs)


def note(connection: sa.Connection, group_id: str, objective: Objective, constraints: Constraints) -> None:
    """Keep what a group is compared by."""
    connection.execute(
        job_groups.insert().values(
            id=group_id, objective=objective, constraints=asdict(constraints), created=time.time()
        )
    )


def find(connection: sa.Connection, group_id: str) -> Group:
    """A group whose jobs the caller may see.

    Raises:
        JobGroupNotFoundError: there is none of that id.
    """
    query = (
        sa.select(jobs)
        .where(jobs.c.group_id == group_id, jobs.c.kind == "optimize", visible(jobs.c.owner))
        .order_by(jobs.c.id)
    )
    rows = connection.execute(query).mappings().all()
    if not rows:
        raise JobGroupNotFoundError(f"there is no job group {group_id!r}")
    by = connection.execute(sa.select(job_groups).where(job_groups.c.id == group_id)).mappings().first()
    if by is None:
        return Group(group_id, "latency", Constraints(), rows)
    return Group(group_id, by["objective"], Constraints(**by["constraints"]), rows)


def forget_empty(connection: sa.Connection) -> None:
    """Delete what is kept about groups without jobs."""
    connection.execute(job_groups.delete().where(~sa.exists().where(jobs.c.group_id == job_groups.c.id)))
