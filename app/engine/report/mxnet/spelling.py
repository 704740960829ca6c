"""A symbol under construction, and the node of a graph that is being spelled in it.

MXNet 1.9.1 has no scalars and no tensors without elements, and its comparisons give the type of their
operands. So a scalar is held as a list of one element, and a bool as the float32 numbers 0 and 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.mxnet.builder import Room
from app.engine.model.mxnet.params_file import DTYPES, STORAGE
from app.engine.model.mxnet.symbol_file import VARIABLE, Entry, Symbol, SymbolNode
from app.engine.types.storage import DECLARED, is_note

Array = np.ndarray[Any, Any]
Dims = tuple[int | None, ...]  # None for free ones
NO_NOTES: Mapping[str, str] = {}
NUMBERS: Mapping[np.dtype[Any], int] = {dtype: number for number, dtype in DTYPES.items()}
FLOAT = np.dtype("f4")
HALF = np.dtype("f2")
BOOL = np.dtype("?")
FLOATS = (np.dtype("f4"), np.dtype("f8"))
FAR = 2**31 - 1  # past the end of any axis


class Unspelled(Exception):  # noqa: N818  # a reason that the caller collects, no error of its own
    """Reason why MXNet has no spelling of a node."""


@dataclass(slots=True)
class Writing:
    """Nodes, parameters and names of a symbol, and what stands for the values of the graph.

    Attributes:
        spell: adds the spelling of a node, for the bodies of control flow.
        outer: around a nested symbol, whose variables it has values for.
        captured: values of the outer symbol by the variable that stands for each.
    """

    room: Room
    spell: "Callable[[Spelling], None]"
    nodes: list[SymbolNode] = field(default_factory=list)
    parameters: dict[str, Array] = field(default_factory=dict)
    entries: dict[ir.Value, Entry] = field(default_factory=dict)
    outer: "Writing | None" = None
    captured: dict[int, Entry] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def nested(self) -> "Writing":
        """A symbol inside of this one; names are shared."""
        return Writing(self.room, self.spell, outer=self, _names=self._names)

    def spell_all(self, body: ir.Graph) -> None:
        """Add the spellings of the nodes of a body.

        Raises:
            Unspelled: names the node that has none.
        """
        for node in body:
            try:
                self.spell(Spelling(node, self))
            except Unspelled as reason:
                raise Unspelled(f"{node.op_type} {node.name!r} in its body: {reason}") from reason

    def bound(self, name: str, outside: Entry | None = None) -> Entry:
        """A variable of a nested symbol, for a value of the outer one where it is given."""
        self.nodes.append(SymbolNode(VARIABLE, self.unique(name), {}, ()))
        if outside is not None:
            self.captured[len(self.nodes) - 1] = outside
        return len(self.nodes) - 1, 0

    def find(self, value: ir.Value) -> Entry | None:
        """Symbol entry of a value, also of the symbols around this one."""
        if value not in self.entries and self.outer is not None:
            outside = self.outer.find(value)
            if outside is not None:
                self.entries[value] = self.bound(value.name or "captured", outside)
        return self.entries.get(value)

    def unique(self, name: str) -> str:
        """The name, with a number if it is taken."""
        found, count = name, 0
        while found in self._names:
            count += 1
            found = f"{name}.{count}"
        self._names.add(found)
        return found

    def variable(self, name: str, shape: Dims, dtype: np.dtype[Any], notes: Mapping[str, str]) -> Entry:
        """A variable, its free dimensions as 0."""
        if dtype not in NUMBERS:
            raise Unspelled(f"{name!r} has elements of {dtype}, which MXNet has not")
        attributes = {"__dtype__": str(NUMBERS[dtype]), "__shape__": text(tuple(d or 0 for d in shape))}
        self.nodes.append(SymbolNode(VARIABLE, self.unique(name), {**attributes, **notes}, ()))
        return len(self.nodes) - 1, 0

    def parameter(self, array: Array, name: str, notes: Mapping[str, str] = NO_NOTES) -> Entry:
        """A variable with data; of a nested symbol it is one of the outermost."""
        if self.outer is not None:
            return self.bound(name, self.outer.parameter(array, name, notes))
        array = held(array)
        self.room.take(nbytes=array.nbytes)
        entry = self.variable(name, array.shape, array.dtype, notes)
        self.parameters[self.nodes[-1].name] = array
        return entry

    def add(
        self,
        op: str,
        name: str,
        inputs: tuple[Entry, ...],
        attributes: Mapping[str, Any],
        nested: tuple[Symbol, ...] = (),
    ) -> Entry:
        """The first output of a new node."""
        self.room.take(outputs=1)
        given = {k: text(v) for k, v in attributes.items() if v is not None}
        self.nodes.append(SymbolNode(op, self.unique(name), given, inputs, nested))
        return len(self.nodes) - 1, 0

    def rename(self, index: int, name: str) -> None:
        """Give a node another name, unless that is taken."""
        if name not in self._names:
            self._names.discard(self.nodes[index].name)
            self._names.add(name)
            self.nodes[index] = replace(self.nodes[index], name=name)

    def symbol(self, heads: tuple[Entry, ...]) -> Symbol:
        """The whole."""
        return Symbol(tuple(self.nodes), heads)

    def reachable(self, heads: Sequence[Entry]) -> list[int]:
        """Nodes that heads depend on, in the order in which MXNet numbers those of a nested symbol.

        That is depth first, operands before their readers (nnvm `DFSVisit`).
        """
        found: dict[int, None] = {}
        stack = [(head[0], False) for head in reversed(heads)]
        while stack:
            index, is_done = stack.pop()
            if is_done:
                found[index] = None
            elif index not in found:
                stack.append((index, True))
                stack += [(i, False) for i, _ in reversed(self.nodes[index].inputs) if i not in found]
        return list(found)


def notes_of(found: Mapping[str, str]) -> dict[str, str]:
    """Attributes of a variable: those that a symbol had, and its storage type."""
    notes = {k: v for k, v in found.items() if is_note(k) and k != DECLARED}
    number = next((n for n, (kind, _) in STORAGE.items() if kind == found.get(DECLARED)), 0)
    return notes | ({"__storage_type__": str(number)} if number else {})


def held(array: Array) -> Array:
    """The elements of a constant as MXNet holds them."""
    array = array.astype(FLOAT) if array.dtype == BOOL else array
    if array.size == 0:
        raise Unspelled("a constant has no elements; MXNet has no such tensors")
    return array.reshape(array.shape or (1,))


def text(value: Any) -> str:
    """An attribute as MXNet writes it."""
    if isinstance(value, tuple | list):
        return f"({', '.join(text(v) for v in value)}{',' if len(value) == 1 else ''})"
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Spelling:
    """A node and the symbol that it is spelled in; a wide one is computed in float32 instead of float16."""

    node: ir.Node
    writing: Writing
    wide: bool = False

    def add(self, op: str, *inputs: Entry, **attributes: Any) -> Entry:
        """The first output of a new node of the symbol."""
        return self.writing.add(op, f"{self.title}.{op.strip('_')}", inputs, attributes)

    @property
    def title(self) -> str:
        """The name of the first result."""
        return self.node.outputs[0].name or self.node.name or self.node.op_type

    def value(self, place: int) -> ir.Value:
        """An operand."""
        value = graph.input_at(self.node, place)
        if value is None:
            raise Unspelled(f"operand {place} is not given")
        return value

    def has(self, place: int) -> bool:
        """True if an operand is given."""
        return graph.input_at(self.node, place) is not None

    def input(self, place: int) -> Entry:
        """An operand in the symbol."""
        value = self.value(place)
        found = self.entry_of(value)
        return self.add("Cast", found, dtype=str(FLOAT)) if self.widens(value) else found

    def widens(self, value: ir.Value) -> bool:
        """True for a value of float16 that is cast, as MXNet multiplies none on CPUs."""
        return self.wide and graph.dtype(value) == HALF

    def entry_of(self, value: ir.Value) -> Entry:
        """Symbol entry of a value; a constant becomes a parameter."""
        found = self.writing.find(value)
        if found is not None:
            return found
        array = graph.constant(value)
        if array is None:
            raise Unspelled(f"operand {value.name!r} is not known")
        name = value.name or "constant"
        self.writing.entries[value] = self.writing.parameter(array, name, notes_of(value.metadata_props))
        return self.writing.entries[value]

    def inputs(self) -> tuple[Entry, ...]:
        """All operands in the symbol."""
        return tuple(self.input(i) for i in range(len(self.node.inputs)))

    def constant(self, place: int) -> Array:
        """The elements of an operand.

        Raises:
            Unspelled: they are computed.
        """
        array = self.known(place)
        if array is None:
            raise Unspelled(
                f"operand {self.value(place).name!r} is computed, MXNet has an attribute for it; "
                "bind the shapes of the inputs, from which most such operands follow"
            )
        return array

    def known(self, place: int) -> Array | None:
        """The elements of an operand, None where they are computed."""
        array = graph.constant(self.value(place))
        return array.astype(FLOAT) if array is not None and self.widens(self.value(place)) else array

    def array(self, array: Array, name: str) -> Entry:
        """A new parameter."""
        return self.writing.parameter(array, f"{self.title}.{name}")

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the node."""
        return graph.attribute(self.node, name, default)

    def dims(self, value: ir.Value) -> Dims:
        """The shape of a value.

        Raises:
            Unspelled: its rank is not known.
        """
        if value.shape is None:
            raise Unspelled(f"the rank of {value.name!r} is not known; bind the shapes of the inputs")
        return tuple(d if isinstance(d, int) else None for d in value.shape)

    def static(self, value: ir.Value) -> tuple[int, ...]:
        """The shape of a value as MXNet holds it: a list of one for a scalar.

        Raises:
            Unspelled: a dimension is free.
        """
        dims = self.dims(value) or (1,)
        if any(d is None for d in dims):
            raise Unspelled(f"{value.name!r} has the shape {value.shape}; bind the shapes of the inputs")
        return tuple(d for d in dims if d is not None)

    def result(self, place: int = 0) -> ir.Value:
        """A result."""
        return self.node.outputs[place]

    def rank(self, place: int = 0) -> int:
        """The number of axes of an operand."""
        return len(self.dims(self.value(place)))

    def axis(self, name: str, default: int, place: int = 0) -> int:
        """An axis of an operand, counted from the front."""
        axis = int(self.attribute(name, default))
        return axis % max(self.rank(place), 1)

    def dtype(self, value: ir.Value) -> np.dtype[Any]:
        """The element type of a value as MXNet holds it."""
        dtype = graph.dtype(value)
        if dtype is None or (dtype != BOOL and dtype not in NUMBERS):
            raise Unspelled(f"{value.name!r} has the type {value.type}, which MXNet has not")
        return FLOAT if dtype == BOOL or self.widens(value) else dtype

    def floats(self, place: int = 0) -> None:
        """Refuse other elements of an operand than those that layers are computed in."""
        dtype = self.dtype(self.value(place))
        if dtype not in FLOATS:
            raise Unspelled(f"elements of {dtype}; MXNet computes it in float32 and float64")

    def reshaped(self, entry: Entry, shape: tuple[int, ...]) -> Entry:
        """The entry in a shape, that of a scalar as a list of one."""
        return self.add("Reshape", entry, shape=shape or (1,))

    def cast(self, entry: Entry, dtype: np.dtype[Any], to: np.dtype[Any]) -> Entry:
        """The entry in another element type."""
        return entry if dtype == to else self.add("Cast", entry, dtype=str(to))


def is_same(a: ir.Value, b: ir.Value) -> bool:
    """True if two values surely have the same shape."""
    return a.shape is not None and b.shape is not None and list(a.shape) == list(b.shape)
