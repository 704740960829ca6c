"""Failures, as RFC 9457 has them."""

from pydantic import Field

from app.api.schemas.fields import Schema


class ProblemDetail(Schema):
    """One thing that is wrong, and where."""

    pointer: str = Field(description="JSON pointer into the body, or `query:name`, `path:name`, `node:name`.")
    message: str


class Problem(Schema):
    """A failure, as RFC 9457 has it."""

    type: str = Field(description="Address of the description of `code`.")
    title: str
    status: int
    detail: str
    instance: str
    code: str = Field(description="Stable name of the failure, for programs.")
    errors: list[ProblemDetail]
    request_id: str


class ProblemKindAnswer(Schema):
    """A stable code and what it means."""

    code: str
    title: str
    status: int | None = Field(description="Status of answers with this code; null where only jobs have it.")
