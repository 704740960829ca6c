"""Facts about onnx-ir values and nodes, with the shapes and dtypes that inference left on them."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from app.engine.core.cache import Cache
from app.engine.core.group import Group
from app.engine.types.map_type import MapType

T = TypeVar("T")


def shape(value: ir.Value) -> tuple[int, ...] | None:
    """The static shape of a value; None when its rank or a dimension is unknown."""
    if value.shape is None:
        return None
    dims = value.shape.dims
    for d in dims:  # asked more often than anything else
        if d.__class__ is not int:
            return None
    return dims  # type: ignore[return-value]  # all are ints


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """Shape of a value, which must be static.

    Raises:
        ValueError: its rank or a dimension is unknown.
    """
    found = shape(value)
    if found is None:
        raise ValueError(f"value {value.name!r}: expected a static shape, found {value.shape}")
    return found


def elements(value: ir.Value) -> int:
    """Elements of a static value; one for rank 0."""
    return math.prod(static_shape(value))


def dtype(value: ir.Value) -> np.dtype[Any] | None:
    """The NumPy dtype of a value, 4-bit types unpacked to a byte; None when unknown or a string."""
    return _DTYPES[value.dtype]  # asked nearly as often as the shape


_DTYPES: dict[ir.DataType | None, np.dtype[Any] | None] = {
    kind: None if kind in (ir.DataType.UNDEFINED, ir.DataType.STRING) else kind.numpy()
    for kind in ir.DataType
}
_DTYPES[None] = None


def nbytes(value: ir.Value) -> int:
    """Bytes of a static value in row-major order."""
    return elements(value) * element_type(value).itemsize


def is_tensor(value: ir.Value) -> bool:
    """True if the value is a tensor (not a sequence, optional or map) of fixed-size elements."""
    return not is_composite(value) and dtype(value) is not None


def is_composite(value: ir.Value) -> bool:
    """True if the value is a sequence, an optional or a map, which has no shape to bind."""
    return type(value.type) in _COMPOSITE


# Compared by class: `isinstance` walks the protocols of these.
_COMPOSITE = (ir.SequenceType, ir.OptionalType, MapType)


def is_dynamic(value: ir.Value) -> bool:
    """True if the value must live outside the arena: unknown shape, strings, sequences."""
    return not is_tensor(value) or shape(value) is None


def constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The array behind a value that does not change between runs; None for others.

    Strings are Python strings, though a file holds them in UTF-8.
    """
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    if value.const_value.dtype != ir.DataType.STRING:
        return value.const_value.numpy()
    encoded = value.const_value.numpy()
    strings = np.empty(encoded.shape, object)
    strings.reshape(-1)[:] = [s.decode() if isinstance(s, bytes) else s for s in encoded.reshape(-1)]
    return strings


def fact(value: ir.Value, name: str, measure: Callable[[np.ndarray[Any, Any]], T], cache: Cache) -> T:
    """Result of `measure` on a constant's array, computed once for a tensor; values may share one."""
    return cache.result((value.const_value, name), lambda: measure(array(value)))


def is_constant(value: ir.Value) -> bool:
    """True if the value is an initializer that is not also a graph input."""
    return value.const_value is not None and not value.is_graph_input()


def number(value: ir.Value | None) -> float | None:
    """The number that every element of a constant equals, of 16-bit floats too; None for others."""
    found = constant(value)
    if found is None or found.size == 0 or (found.dtype.kind not in "fiu" and found.dtype.name != "bfloat16"):
        return None
    first = found.reshape(-1)[0]
    return float(first) if bool(np.all(found == first)) else None


def copied(model: ir.Model) -> ir.Model:
    """A copy of a model with its `meta`, which notes inputs that were bound; `clone` leaves that out."""
    found = model.clone()
    found.meta.update(model.meta)
    return found


def source(value: ir.Value) -> ir.Value:
    """Value that a value is an Identity of, or the value itself."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and not producer.domain:
        value = producer.inputs[0] or value
        producer = value.producer()
    return value


def attribute(node: ir.Node, name: str, default: T) -> T:
    """The value of an attribute, or the default where the node leaves it out."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input by position; None where it is omitted."""
    return node.inputs[index] if index < len(node.inputs) else None


def operand(node: ir.Node, index: int) -> ir.Value:
    """Input of a node by position, which the node must not omit.

    Raises:
        ValueError: it is omitted.
    """
    found = input_at(node, index)
    if found is None:
        raise ValueError(f"{node.op_type} {node.name!r}: expected an input at position {index}, found none")
    return found


def operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Inputs of a node, none of which it may omit: see `operand`."""
    return tuple(operand(node, index) for index in range(len(node.inputs)))


def element_type(value: ir.Value) -> np.dtype[Any]:
    """NumPy dtype of a value, which must have one: see `dtype`.

    Raises:
        ValueError: the type is unknown, or strings.
    """
    found = dtype(value)
    if found is None:
        kind = "no type" if value.dtype is None else value.dtype.name
        raise ValueError(f"value {value.name!r}: expected elements of a fixed size, found {kind}")
    return found


def array(value: ir.Value | None) -> np.ndarray[Any, Any]:
    """Array of a constant: see `constant`.

    Raises:
        ValueError: the value changes between runs, or is omitted.
    """
    found = constant(value)
    if found is None:
        name = "" if value is None else value.name
        raise ValueError(
            f"value {name!r}: expected a constant, found "
            + ("no value" if value is None else "a value that changes between runs")
        )
    return found


def writer(value: ir.Value) -> ir.Node:
    """Node that computes a value.

    Raises:
        ValueError: none does: it is a graph input or an initializer.
    """
    found = value.producer()
    if found is None:
        raise ValueError(
            f"value {value.name!r}: expected the output of a node, found an input of the graph or an "
            "initializer"
        )
    return found


def owner(node: ir.Node) -> ir.Graph:
    """Graph that a node belongs to.

    Raises:
        ValueError: it was removed from its graph, or never inserted.
    """
    found = node.graph
    if found is None or isinstance(found, ir.Function):
        raise ValueError(f"{node.op_type} {node.name!r}: expected a node of a graph, found one outside any")
    return found


def values(graph: ir.Graph) -> tuple[ir.Value, ...]:
    """Every value of the main graph: inputs, initializers, then node outputs in order."""
    found = dict.fromkeys(graph.inputs)
    found.update(dict.fromkeys(graph.initializers.values()))
    for node in graph:
        found.update(dict.fromkeys(node.outputs))
    return tuple(found)


def captures(node: ir.Node) -> tuple[ir.Value, ...]:
    """Values of enclosing graphs that the bodies of a control-flow node read, each once."""
    graphs = bodies(node)
    if not graphs:
        return ()
    found: dict[ir.Value, None] = {}
    inner: set[ir.Value] = set()

    def visit(body: ir.Graph) -> None:
        inner.update(body.inputs)
        inner.update(body.initializers.values())
        for member in body:
            found.update(dict.fromkeys(v for v in member.inputs if v is not None and v not in inner))
            for nested in bodies(member):
                visit(nested)
            inner.update(member.outputs)
        found.update(dict.fromkeys(v for v in body.outputs if v is not None and v not in inner))

    for body in graphs:
        visit(body)
    return tuple(v for v in found if v not in inner)


def bodies(node: ir.Node) -> tuple[ir.Graph, ...]:
    """The graphs in a node's attributes."""
    found: list[ir.Graph] = []
    for attribute_ in node.attributes.data.values():  # not through the view of a UserDict: asked of all nodes
        if attribute_.type == ir.AttributeType.GRAPH:
            found.append(attribute_.value)
        elif attribute_.type == ir.AttributeType.GRAPHS:
            found.extend(attribute_.value)
    return tuple(found)


def reads(node: ir.Node) -> tuple[ir.Value, ...]:
    """Every value a node depends on, captured ones included, each once."""
    found = dict.fromkeys((*node.inputs, *captures(node)))
    found.pop(None, None)
    return tuple(found)  # type: ignore[arg-type]  # None is gone


def order_by_wiring(graph: ir.Graph) -> None:
    """Put the nodes in an order that their wiring alone gives: what each input needs, one after the other.

    Two files of one model that list its nodes in different orders are the same from here on. Nodes
    that no output needs come last, in the order they had.
    """
    placed: dict[ir.Node, None] = {}
    started: set[ir.Node] = set()
    roots = [v.producer() for v in graph.outputs]
    stack = [n for n in (*reversed(tuple(graph)), *reversed(roots)) if n is not None]
    while stack:
        node = stack[-1]
        if node in started:
            stack.pop()
            placed[node] = None  # a second time changes nothing
            continue
        started.add(node)
        needed = (v.producer() for v in reversed(reads(node)))
        stack += [n for n in needed if n is not None and n.graph is graph and n not in started]
    for node in placed:
        graph.append(node)


def readers(graph: ir.Graph) -> dict[ir.Value, tuple[ir.Node, ...]]:
    """The nodes of the main graph that depend on each value, uses in nested graphs included."""
    found: dict[ir.Value, dict[ir.Node, None]] = {}
    for node in graph:
        for value in reads(node):
            found.setdefault(value, {})[node] = None
    return {value: tuple(nodes) for value, nodes in found.items()}


def group(
    nodes: tuple[ir.Node, ...], anchor: ir.Node, op: str, escaping: Callable[[ir.Value], bool]
) -> Group:
    """Nodes as a group. `escaping` tells whether anything outside the nodes needs a value."""
    made = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in reads(n) if v not in made)
    return Group(nodes, anchor, tuple(read), tuple(v for n in nodes for v in n.outputs if escaping(v)), op)


def scalar(value: ir.Value | None) -> float | None:
    """As `number`, but None for bfloat16."""
    return None if value is None or value.dtype == ir.DataType.BFLOAT16 else number(value)
