"""Decisions of an optimization, step by step."""

from typing import Any

from pydantic import Field

from app.api.schemas.fields import Schema


class Alternative(Schema):
    """An implementation that a step might have had."""

    name: str
    backend: str
    seconds: float | None = Field(description="What it would take; null where its predicate refuses.")
    measured: bool = Field(description="Whether that time was measured on the target.")
    bytes: int | None = Field(default=None, description="Operands in its layouts, and its workspace.")
    layouts: dict[str, str] = Field(default={}, description="Values that it has other than row-major.")
    reason: str | None = Field(description="Why it was not taken; null where another costs less.")


class Padding(Schema):
    """The contract of a step about padded lanes, and what those of its values hold."""

    reads: str
    leaves: str
    values: dict[str, str | None]


class DecisionAnswer(Schema):
    """Reasons for the choice of a step, and its alternatives."""

    subject: str = Field(description="Its name; of a step in a body the path, `loop/body/add`.")
    parent: str | None = Field(default=None, description="The step that runs the body that it is in.")
    op: str
    nodes: list[str]
    chosen: str
    backend: str
    precision: str = Field(default="f32", description="Of its products of float32.")
    seconds: float | None
    bytes: int | None = None
    reason: str
    measured: bool
    error: float | None
    fallback: bool
    why_not_blocked: str | None = Field(
        default=None, description="Null where the step reads or writes blocked values."
    )
    alternatives: list[Alternative]
    storage: dict[str, dict[str, Any] | None]
    layout: dict[str, dict[str, Any] | None]
    memories: dict[str, str] = Field(default={}, description="Where the step asks for operands to be.")
    padding: Padding | None = None
    dispatch: dict[str, str]


class OutsideNode(Schema):
    """A node that cannot be said in core operators, see `listOperators`."""

    node: str
    op: str
    domain: str
    reason: str


class DecisionList(Schema):
    """Steps in order of execution."""

    outside_core: list[OutsideNode] = Field(
        default=[], description="Nodes of the canonical graph that cannot be said in core operators."
    )
    decisions: list[DecisionAnswer]
