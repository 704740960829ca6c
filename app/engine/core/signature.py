"""Signatures of groups, and results that are computed once for a group or for all groups of a signature.

Predicates and costs see the operators, attributes, shapes, types and wiring of a group: its signature. Some
read elements of constants too, for which `graph.constant` is the only door. It counts reads, and so does a
result that is taken from the cache and was computed with such a read: whether a result holds for all groups
of a signature is known after it was computed.
"""

from collections.abc import Callable, Hashable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

import onnx_ir as ir

if TYPE_CHECKING:
    from app.engine.core.group import Group

T = TypeVar("T")
Cache = MutableMapping[Hashable, object]


class ConstantReads:
    """Count of reads of elements of constants; reads of other threads only make a result less shared."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


constant_reads = ConstantReads()


def cached(cache: dict[Hashable, tuple[Any, bool]], key: Hashable, make: Callable[[], T]) -> T:
    """Result of `make`, called once; the cache keeps with it whether it read elements of constants."""
    found = cache.get(key)
    if found is None:
        before = constant_reads.count
        made = make()
        found = cache[key] = made, constant_reads.count != before
    elif found[1]:
        constant_reads.count += 1
    return found[0]


def cached_by_signature(group: "Group", key: Hashable, make: Callable[[], T], cache: Cache) -> T:
    """Result of `make` for a group, called once for all groups of its signature where it depends on no more.

    A result that was computed from elements of constants, or that names a node or a value of the group, is
    the group's own.
    """
    same = cached(group.cache, _interned, lambda: _interned(group, cache))
    if same is None:
        return make()
    found = cache.get((same, key))
    if found is None:
        before = constant_reads.count
        made = make()
        if constant_reads.count == before and not (isinstance(made, str) and _is_named(made, group)):
            cache[same, key] = (made,)
        return made
    return found[0]  # type: ignore[index,no-any-return]  # as it was stored


def _interned(group: "Group", cache: Cache) -> object | None:
    """Object that stands for the signature: it compares as signatures do and hashes in constant time."""
    found = signature(group)
    return None if found is None else cache.setdefault(found, object())


def _is_named(text: str, group: "Group") -> bool:
    names = {n.name for n in group.nodes}
    names |= {v.name for n in group.nodes for v in (*n.inputs, *n.outputs) if v is not None}
    return any(name and name in text for name in names)


def signature(group: "Group") -> Hashable | None:
    """A group but for names and elements; None where it has bodies, tensors or free dimensions."""
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
    """A group has more than its signature can hold."""


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
