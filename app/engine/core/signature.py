"""What is found out about a group, once; and once for all groups that are alike.

Predicates and costs see operators, attributes, shapes, types and wiring of a group: its kind. Some look at
the elements of constants too, for which `graph.constant` is the only door. It counts, and so does asking
again for what was found with a look: whether a result holds for all groups of a kind is known afterwards.
"""

from collections.abc import Callable, Hashable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

import onnx_ir as ir

if TYPE_CHECKING:
    from app.engine.core.group import Group

T = TypeVar("T")
Shared = MutableMapping[Hashable, object]


class ConstantReads:
    """How often elements of constants were looked at: a clock, by which other threads do no harm."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


constant_reads = ConstantReads()


def once(facts: dict[Hashable, tuple[Any, bool]], key: Hashable, make: Callable[[], T]) -> T:
    """What `make` returns, asked once; with it is kept whether it looked at elements of constants."""
    found = facts.get(key)
    if found is None:
        before = constant_reads.count
        made = make()
        found = facts[key] = made, constant_reads.count != before
    elif found[1]:
        constant_reads.count += 1
    return found[0]


def shared(group: "Group", key: Hashable, make: Callable[[], T], among: Shared) -> T:
    """What `make` says of a group, asked once for all groups of its kind where nothing tells them apart.

    A result that was found with a look at elements, or that names a node or a value of the group, is the
    group's own.
    """
    same = once(group.facts, _interned, lambda: _interned(group, among))
    if same is None:
        return make()
    found = among.get((same, key))
    if found is None:
        before = constant_reads.count
        made = make()
        if constant_reads.count == before and not (isinstance(made, str) and _is_named(made, group)):
            among[same, key] = (made,)
        return made
    return found[0]  # type: ignore[index,no-any-return]  # as it was stored


def _interned(group: "Group", among: Shared) -> object | None:
    """An object that stands for the kind: it compares as kinds do and hashes at once."""
    found = kind(group)
    return None if found is None else among.setdefault(found, object())


def _is_named(text: str, group: "Group") -> bool:
    names = {n.name for n in group.nodes}
    names |= {v.name for n in group.nodes for v in (*n.inputs, *n.outputs) if v is not None}
    return any(name and name in text for name in names)


def kind(group: "Group") -> Hashable | None:
    """What a group is but for names and elements; None where it has bodies, tensors or free dimensions."""
    places: dict[ir.Value, int] = {}

    def operand(value: ir.Value | None) -> Hashable:
        if value is None or not value.name:
            return None
        if value in places:
            return places[value]
        places[value] = len(places)
        if value.shape is None or value.type.__class__ is not ir.TensorType:
            raise _UnknownError
        fixed = value.const_value is not None
        return value.dtype, value.shape.dims, fixed, fixed and value.is_graph_input()

    try:
        nodes = tuple(
            (
                node.domain,
                node.op_type,
                tuple(map(_attribute, node.attributes.values())),
                tuple(map(operand, node.inputs)),
                tuple(map(operand, node.outputs)),
                node is group.anchor,
            )
            for node in group.nodes
        )
    except _UnknownError:
        return None
    ends = (tuple(places.get(v) for v in side) for side in (group.inputs, group.outputs))
    return group.op, nodes, *ends


def _attribute(attribute: ir.Attr) -> Hashable:
    if attribute.type not in PLAIN:
        raise _UnknownError
    return attribute.name, attribute.type, attribute.value


class _UnknownError(Exception):
    """There is more to a group than its kind can tell."""


PLAIN = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.FLOAT,
        ir.AttributeType.STRING,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRINGS,
    }
)
