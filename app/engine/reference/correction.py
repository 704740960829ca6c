"""Corrected operators: plain functions that stand in for the reference evaluator's classes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx.reference.op_run import OpRun, RefAttrName

FOREVER = 1 << 30


class Body(Protocol):
    """A graph in an attribute, as the evaluator holds it; `output_types` are TypeProtos."""

    input_names: Sequence[str]
    output_names: Sequence[str]
    output_types: Sequence[Any]

    def run(
        self, output_names: None, feeds: Mapping[str, object], attributes: Mapping[str, object] | None
    ) -> list[Any]:
        """The values of all outputs."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """Values and functions that the body of a control-flow operator sees besides its own inputs.

    Attributes:
        values: of the enclosing graphs, by name.
        attributes: of the enclosing function, which attributes of nodes in the body refer to.
    """

    values: Mapping[str, object]
    attributes: Mapping[str, object] | None

    def run(self, body: Body, inputs: Sequence[object]) -> list[Any]:
        """The outputs of a body; its inputs hide values of the same name."""
        feeds = {**self.values, **dict(zip(body.input_names, inputs))}
        return body.run(None, feeds, attributes=self.attributes)


@dataclass(frozen=True, slots=True)
class Correction:
    """An operator computed by a function of ours, for opsets since..until (half-open).

    Attributes:
        function: takes the inputs by position (None where omitted) and the attributes that the
            node states by name; gives the outputs. With `scoped` also a keyword `scope`.
        reason: what the class of onnx 1.23.2 does wrong.
    """

    op: str
    function: Callable[..., Sequence[object]]
    reason: str
    since: int = 1
    until: int = FOREVER
    domain: str = ""
    scoped: bool = False


def operator_class(row: Correction) -> type[Any]:
    """The row as a class that the reference evaluator can instantiate."""

    class Corrected(OpRun):  # type: ignore[misc]  # onnx.reference is not typed
        def need_context(self) -> bool:
            return row.scoped

        def run(
            self,
            *inputs: object,
            context: Mapping[str, object] | None = None,
            linked_attributes: Mapping[str, object] | None = None,
            bindings: object = None,  # noqa: ARG002  # part of the evaluator's calling convention
        ) -> tuple[object, ...]:
            stated = {a.name: getattr(self, a.name) for a in self.onnx_node.attribute}
            linked = linked_attributes or {}
            attributes = {
                name: linked[value.name] if isinstance(value, RefAttrName) else value
                for name, value in stated.items()
                if not isinstance(value, RefAttrName) or value.name in linked
            }
            if row.scoped:
                attributes["scope"] = Scope(context or {}, linked_attributes)
            results = row.function(*inputs, **attributes)
            return tuple(np.asarray(r) if np.isscalar(r) else r for r in results)

        def _run(self, *_args: object, **_attributes: object) -> tuple[object, ...]:
            raise NotImplementedError  # run() does it all

    Corrected.__name__ = row.op
    return Corrected
