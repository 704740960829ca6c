"""Labels: what users write on models and jobs, to find them again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from app.jobs.errors import RequestError
from app.jobs.store.database import labels


def put(connection: sa.Connection, subject: str, given: Mapping[str, str]) -> None:
    """Replace the labels of a model or a job."""
    forget(connection, [subject])
    for name, value in given.items():
        connection.execute(labels.insert().values(subject=subject, name=name, value=value))


def forget(connection: sa.Connection, subjects: Iterable[str]) -> None:
    """Remove all labels of models or jobs."""
    connection.execute(labels.delete().where(labels.c.subject.in_(list(subjects))))


def of(connection: sa.Connection, subjects: Iterable[str]) -> dict[str, dict[str, str]]:
    """Labels by model or job; those that have none are left out."""
    found: dict[str, dict[str, str]] = {}
    query = sa.select(labels).where(labels.c.subject.in_(list(subjects))).order_by(labels.c.name)
    for row in connection.execute(query):
        found.setdefault(row.subject, {})[row.name] = row.value
    return found


def matching(
    subject: sa.Column[Any],
    wanted: Sequence[str],
    text: str | None,
    named: sa.ColumnElement[bool] | None = None,
) -> list[sa.ColumnElement[bool]]:
    """Conditions: every `name` or `name=value` is there, and some label's value contains the text.

    Where `named` holds, the text needs no label.

    Raises:
        RequestError: a wanted label has no name.
    """
    conditions: list[sa.ColumnElement[bool]] = []
    for each in wanted:
        name, sign, value = each.partition("=")
        if not name:
            raise RequestError(f"label: expected NAME or NAME=VALUE, found {each!r}", pointer="query:label")
        has = (labels.c.subject == subject, labels.c.name == name)
        conditions.append(sa.exists().where(*has, *((labels.c.value == value,) if sign else ())))
    if text is not None:
        contains = labels.c.value.icontains(text, autoescape=True)
        held = sa.exists().where(labels.c.subject == subject, contains)
        conditions.append(held if named is None else sa.or_(held, named))
    return conditions
