"""Symbols of MXNet as `NAME-symbol.json` holds them, with every number checked before it is used.

Source: the format that apache/mxnet 1.9.1 writes (`Symbol.save`), and what older releases wrote: attributes
under `attr` or `param`, inputs of two numbers.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.engine.model.mxnet.aliases import ALIASES
from app.engine.types.errors import CyclicGraphError, GraphError, ModelTooLargeError, NotOnnxError
from app.engine.types.limits import Limits

VARIABLE = "null"  # operator of a variable
LARGEST = 2**26  # byte; the symbol of a network of a thousand layers has about 2^20
_ATTRIBUTES = ("param", "attr", "attrs")  # keys under which releases wrote them, the latest last
_VERSION = 10901  # of MXNet
_MOST_OUTPUTS = 2**16  # of a node
_OPENING = 64  # byte of a file that tell its kind

Entry = tuple[int, int]  # (node, output)


@dataclass(frozen=True, slots=True)
class SymbolNode:
    """A node of a symbol; `op` is VARIABLE for a variable, `outputs` the number of what it makes."""

    op: str
    name: str
    attributes: Mapping[str, str]
    inputs: tuple[Entry, ...]
    subgraphs: tuple["Symbol", ...] = ()
    outputs: int = 1
    follows: int | None = None  # of a backward node, the forward node


@dataclass(frozen=True, slots=True)
class Symbol:
    """Nodes in topological order, and the outputs of the symbol."""

    nodes: tuple[SymbolNode, ...]
    heads: tuple[Entry, ...]

    @property
    def variables(self) -> tuple[int, ...]:
        """Indices of its variables, in the order in which MXNet lists them as inputs."""
        return tuple(i for i, node in enumerate(self.nodes) if node.op == VARIABLE)


def is_symbol(path: Path) -> bool:
    """True if a file begins as JSON does; no ONNX model begins with a brace, which is a group of field 15."""
    with path.open("rb") as file:
        return file.read(_OPENING).lstrip().startswith(b"{")


def read(path: Path, limits: Limits) -> Symbol:
    """The symbol in a file.

    Raises:
        NotOnnxError: it is no JSON object with nodes and heads.
        ModelTooLargeError: beyond a limit.
        GraphError: a field has another type, or a number refers to nothing.
    """
    if path.stat().st_size > LARGEST:
        raise ModelTooLargeError(f"the symbol has {path.stat().st_size} byte, allowed are {LARGEST}")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as cause:  # UnicodeDecodeError is a ValueError
        raise NotOnnxError(
            f"the file begins as a symbol of MXNet but is no JSON: {str(cause)[:200]}"
        ) from None
    return _Reader(limits).symbol(found, "the symbol", 0)


def write(path: Path, symbol: Symbol) -> None:
    """Write a symbol as MXNet 1.9.1 does; the same symbol gives the same bytes."""
    path.write_text(
        json.dumps(_json(symbol) | {"attrs": {"mxnet_version": ["int", _VERSION]}}, indent=2) + "\n"
    )


def _json(symbol: Symbol) -> dict[str, Any]:
    nodes = []
    for node in symbol.nodes:
        found: dict[str, Any] = {"op": node.op, "name": node.name}
        if node.attributes:
            found["attrs"] = dict(node.attributes)
        found["inputs"] = [[*entry, 0] for entry in node.inputs]
        if node.subgraphs:
            found["subgraphs"] = [_json(nested) for nested in node.subgraphs]
        nodes.append(found)
    return {
        "nodes": nodes,
        "arg_nodes": list(symbol.variables),
        "heads": [[*head, 0] for head in symbol.heads],
    }


@dataclass(slots=True)
class _Reader:
    limits: Limits
    nodes: int = 0

    def symbol(self, found: Any, title: str, depth: int) -> Symbol:
        if not isinstance(found, dict) or not all(isinstance(found.get(k), list) for k in ("nodes", "heads")):
            raise NotOnnxError(f"{title}: expected an object with the lists `nodes` and `heads`")
        if depth > self.limits.depth:
            raise ModelTooLargeError(f"{title}: nested more than {self.limits.depth} deep")
        self.nodes += len(found["nodes"])
        if self.nodes > self.limits.nodes:
            raise ModelTooLargeError(f"the symbol has more than {self.limits.nodes} nodes")
        if not found["heads"]:
            raise GraphError(f"{title}: `heads` is empty, so the symbol has no outputs")
        count = len(found["nodes"])
        nodes = tuple(self.node(node, (i, count), depth) for i, node in enumerate(found["nodes"]))
        heads = tuple(_entry(h, (count, count), f"{title}: head {i}") for i, h in enumerate(found["heads"]))
        counts = _outputs(found, nodes, heads, title)
        return Symbol(tuple(replace(n, outputs=c) for n, c in zip(nodes, counts)), heads)

    def node(self, found: Any, place: tuple[int, int], depth: int) -> SymbolNode:
        index = place[0]
        if not isinstance(found, dict):
            raise GraphError(f"node {index}: expected an object, found {type(found).__name__}")
        op, name = (
            _text(found.get("op"), f"node {index}: op"),
            _text(found.get("name"), f"node {index}: name"),
        )
        op = ALIASES.get(op, op)
        title = f"node {index}, {op} {name!r}"
        inputs = found.get("inputs", [])
        subgraphs = found.get("subgraphs", [])
        if not isinstance(inputs, list) or not isinstance(subgraphs, list):
            raise GraphError(f"{title}: `inputs` and `subgraphs` must be lists")
        entries = tuple(_entry(e, place, f"{title}: input {i}") for i, e in enumerate(inputs))
        if op == VARIABLE and entries:
            raise GraphError(f"{title}: a variable has no inputs")
        nested = tuple(self.symbol(s, f"{title}: subgraph {i}", depth + 1) for i, s in enumerate(subgraphs))
        after = found.get("control_deps", [])
        if not isinstance(after, list) or not all(type(n) is int and 0 <= n < index for n in after):
            raise GraphError(f"{title}: `control_deps` must be a list of nodes before it")
        follows = after[0] if after else None
        return SymbolNode(op, name, _attributes(found, title), entries, nested, follows=follows)


def _outputs(
    found: Mapping[str, Any], nodes: Sequence[SymbolNode], heads: Sequence[Entry], title: str
) -> list[int]:
    """Outputs of every node: differences of `node_row_ptr`; those that are read, where a release wrote none.

    Raises:
        GraphError: the numbers are no such list, or more is read.
    """
    read = [1] * len(nodes)
    for node, output in (*(entry for n in nodes for entry in n.inputs), *heads):
        read[node] = max(read[node], output + 1)
    pointers = found.get("node_row_ptr")
    if pointers is None:
        return read
    expected = f"{title}: `node_row_ptr` must be a list of {len(nodes) + 1} whole numbers from 0 up"
    if not isinstance(pointers, list) or len(pointers) != len(nodes) + 1 or pointers[0] != 0:
        raise GraphError(expected)
    if not all(type(n) is int for n in pointers):
        raise GraphError(expected)
    counts = [after - before for before, after in itertools.pairwise(pointers)]
    for made, count, least in zip(nodes, counts, read):
        if not least <= count <= _MOST_OUTPUTS:
            raise GraphError(
                f"{title}: `node_row_ptr` gives {made.op} {made.name!r} {count} outputs; expected {least} or "
                "more, which are read"
            )
    return counts


def _attributes(found: Mapping[str, Any], title: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for key in _ATTRIBUTES:
        given = found.get(key, {})
        if not isinstance(given, dict):
            raise GraphError(f"{title}: `{key}` must be an object")
        attributes |= {_text(k, title): _text(v, f"{title}: attribute {k!r}") for k, v in given.items()}
    return attributes


def _entry(found: Any, place: tuple[int, int], title: str) -> Entry:
    """An output of a node before the place; `place` is an index and the number of all nodes."""
    before, count = place
    numbers = isinstance(found, list) and all(type(n) is int for n in found)
    if not numbers or len(found) not in (2, 3):
        raise GraphError(f"{title}: expected [node, output, version], found {str(found)[:60]}")
    node, output = found[:2]
    if before <= node < count:
        raise CyclicGraphError(f"{title}: node {node} does not come before it; {before} nodes do")
    if not 0 <= node < before or not 0 <= output < _MOST_OUTPUTS:
        raise GraphError(f"{title}: there is no output {output} of node {node}")
    return node, output


def _text(found: Any, title: str) -> str:
    if not isinstance(found, str):
        raise GraphError(f"{title}: expected text, found {str(found)[:60]!r}")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise GraphError(f"{title}: expected UTF-8 text, found a lone surrogate") from None
    return found
