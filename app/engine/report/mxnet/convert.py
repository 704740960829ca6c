"""A canonical graph as a symbol of MXNet and its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.mxnet import params_file, symbol_file
from app.engine.model.mxnet.builder import Room
from app.engine.model.mxnet.params_file import STORAGE, Parameter
from app.engine.model.mxnet.symbol_file import Entry, Symbol
from app.engine.report.mxnet.operators import ROWS, WIDENED
from app.engine.report.mxnet.spelling import BOOL, FLOAT, HALF, Spelling, Unspelled, Writing, notes_of
from app.engine.types.errors import SymbolError
from app.engine.types.limits import Limits
from app.engine.types.storage import DECLARED, MXNET

_SHOWN = 50  # nodes that an error lists
_OUTPUT = "_output"  # what MXNet appends to the names of nodes


@dataclass(frozen=True, slots=True)
class Written:
    """A symbol and its parameters, by `arg:` and the name of the variable."""

    symbol: Symbol
    parameters: Mapping[str, Parameter]

    def save(self, symbol: Path, parameters: Path) -> None:
        """Write both files."""
        symbol_file.write(symbol, self.symbol)
        params_file.write(parameters, self.parameters)


def symbol_of(model: ir.Model, limits: Limits = Limits()) -> Written:  # noqa: B008  # frozen
    """The symbol that computes what a canonical graph does.

    Inputs and outputs are in the order of the graph; a scalar is a list of one element.

    Raises:
        SymbolError: names all nodes that have no spelling, each with its reason.
        ModelTooLargeError: constants of its own would be larger than is allowed.
    """
    writing = Writing(Room(16 * limits.nodes, limits.nbytes), _write)
    refused: list[tuple[str, str]] = []
    for value in model.graph.inputs:
        try:
            _input(writing, value)
        except Unspelled as reason:
            refused.append((f"input {value.name!r}", str(reason)))
            writing.entries[value] = (0, 0)
    for node in model.graph:
        try:
            _write(Spelling(node, writing))
        except Unspelled as reason:
            refused.append((f"{node.op_type} {node.name!r}", str(reason)))
        for output in node.outputs:
            writing.entries.setdefault(output, (0, 0))  # so that the nodes after it are tried too
    if refused:
        raise _error(refused)
    heads = _heads(writing, model.graph)
    return Written(writing.symbol(heads), _stored(writing, model.graph))


def _error(refused: list[tuple[str, str]]) -> SymbolError:
    """An error that lists the nodes by their reasons."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in refused[:_SHOWN]:
        by_reason.setdefault(reason, []).append(name)
    listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return SymbolError(f"MXNet 1.9.1 has no spelling of {len(refused)} nodes: {listed}{more}")


def _input(writing: Writing, value: ir.Value) -> None:
    """A variable; bools are cast to what MXNet computes with."""
    dtype, name = graph.dtype(value), value.name or "input"
    if dtype is None or value.shape is None:
        raise Unspelled(
            f"an input of {value.type} and the shape {value.shape}; expected a tensor of known rank"
        )
    dims = tuple(d if isinstance(d, int) else None for d in value.shape)
    if 0 in dims:
        raise Unspelled("an input without elements; MXNet has no such tensors")
    entry = writing.variable(name, dims or (1,), dtype, notes_of(value.metadata_props))
    if dtype == BOOL:
        entry = writing.add("Cast", f"{name}.number", (entry,), {"dtype": str(FLOAT)})
    writing.entries[value] = entry


def _write(c: Spelling) -> None:
    """Add the spelling of a node; its last nodes get the names of its results."""
    node = c.node
    if node.domain != MXNET and (node.domain or node.op_type not in ROWS):
        raise Unspelled("no operator of MXNet 1.9.1 computes it")
    for value in (v for v in node.outputs if v.name):
        if value.shape is not None and 0 in value.shape:
            raise Unspelled(f"{value.name!r} has no elements; MXNet has no such tensors")
    begin = len(c.writing.nodes)
    if node.op_type in WIDENED and any(graph.dtype(v) == HALF for v in node.inputs if v is not None):
        c = replace(c, wide=True)
    found = _as_read(c) if node.domain == MXNET else ROWS[node.op_type](c)
    for value, entry in zip(node.outputs, found if isinstance(found, list) else [found]):
        if c.widens(value):
            entry = c.add("Cast", entry, dtype=str(HALF))
        c.writing.entries[value] = entry
        if entry[0] >= begin and entry[1] == 0:
            c.writing.rename(entry[0], (value.name or "").removesuffix(_OUTPUT))


def _as_read(c: Spelling) -> list[Entry]:
    """An operator of MXNet that was read from a symbol."""
    attributes = {name: str(a.value) for name, a in c.node.attributes.items()}
    index, _ = c.add(c.node.op_type, *c.inputs(), **attributes)
    return [(index, i) for i in range(len(c.node.outputs))]


def _heads(writing: Writing, main: ir.Graph) -> tuple[Entry, ...]:
    """Outputs of the symbol, each of a node of its own."""
    heads: list[Entry] = []
    for value in main.outputs:
        if value not in writing.entries and (array := graph.constant(value)) is not None:
            writing.entries[value] = writing.parameter(array, value.name or "constant")
        entry, name = writing.entries[value], (value.name or "output").removesuffix(_OUTPUT)
        if graph.dtype(value) == BOOL:
            entry = writing.add("Cast", name, (entry,), {"dtype": "bool"})
        elif entry in heads or not writing.nodes[entry[0]].inputs:
            entry = writing.add("_copy", name, (entry,), {})
        heads.append(entry)
    return tuple(heads)


def _stored(writing: Writing, main: ir.Graph) -> dict[str, Parameter]:
    """Parameters by their names in files, those that declare a sparse storage type in it."""
    found = {}
    for name, array in writing.parameters.items():
        value = main.initializers.get(name)
        declared = "" if value is None else value.metadata_props.get(DECLARED, "")
        kind = next((kind for kind, _ in STORAGE.values() if kind == declared), STORAGE[0][0])
        found[f"arg:{name}"] = Parameter(array, kind)
    return found
