"""Compute values again for late readers, in place of keeping them: more work, fewer bytes alive.

In a graph with gradients, backward nodes never wait for what elementwise operators make of values that are
there anyway: the kernels that read it compute it again.

Source: Chen et al., 2016, "Training deep nets with sublinear memory cost", arXiv:1604.06174, section 4.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.rewriter import value_like
from app.engine.gradient import marks
from app.engine.partition.mincut import INFINITE, Network
from app.engine.types.options import Again

_TIES = 30  # bits below a byte, for the choice between equal cuts
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})

Copied: TypeAlias = dict[ir.Value | None, ir.Value]


@dataclass(frozen=True, slots=True)
class Rematerialize:
    """Apply `concessions.again`, in its order: nodes are copied ahead of the first of the late readers."""

    name: ClassVar[str] = "rematerialize"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """The compilation with the copies in its graph, in place; a copy has what its node is bound to."""
        shared: Copied = {}
        steps = [(again, shared) for again in _for_backward(compilation)]
        steps += [(again, {}) for again in compilation.concessions.recompute]
        for index, (again, copied) in enumerate(steps):
            copies = copy(compilation.graph, again, copied)
            compilation = replace(
                compilation,
                options=replace(
                    compilation.options,
                    exact=_inherited(compilation.options.exact, copies),
                    int16=_inherited(compilation.options.int16, copies),
                ),
                # The copies of one library's part are another part: between the two lie other steps.
                assignment={
                    **compilation.assignment,
                    **{
                        made: f"{compilation.assignment[name]}.again{index}"
                        for made, name in copies.items()
                        if name in compilation.assignment
                    },
                },
                failures={
                    **compilation.failures,
                    **{
                        (made, backend): reason
                        for made, name in copies.items()
                        for (failed, backend), reason in compilation.failures.items()
                        if failed == name
                    },
                },
            )
        return compilation


def _inherited(by_node: Mapping[str, str], copies: Mapping[str, str]) -> Mapping[str, str]:
    return {**by_node, **{made: by_node[name] for made, name in copies.items() if name in by_node}}


def _for_backward(compilation: Compilation) -> list[Again]:
    """Nodes to compute again for backward nodes, each at the earliest of its readers.

    The values that are kept instead are those of fewest bytes that elementwise nodes can make the rest of.
    Each names nodes that no earlier one does.
    """
    main = compilation.graph
    names = marks.gradients(compilation.model)
    if not names or compilation.options.semantics != "stowplan":
        return []
    forward, place = marks.forward_nodes(main, names), {node: i for i, node in enumerate(main)}
    late: dict[ir.Value, list[ir.Node]] = {}
    for value in (v for node in main if node in forward for v in node.outputs if graph.shape(v) is not None):
        readers = [u.node for u in value.uses() if u.node in place and u.node not in forward]
        if readers:
            late[value] = sorted(dict.fromkeys(readers), key=place.__getitem__)
    kept = _kept(compilation, forward, late)
    dropped = [v for v in late if v not in kept and not v.is_graph_output()]
    found, copied = [], set[ir.Node]()
    for value in sorted(dropped, key=lambda v: place[late[v][0]]):
        chain = sorted(_chain(value, kept) - copied, key=place.__getitem__)
        copied.update(chain)
        found.append(Again(_names(chain), _names(late[value])))
    return found


def _kept(compilation: Compilation, forward: set[ir.Node], late: Iterable[ir.Value]) -> set[ir.Value]:
    """Values to keep: a minimum cut, in bytes, between what only other nodes can make and what is read late.

    Of equal cuts the one that leaves less to compute again.
    """
    network = Network()
    ends = source, sink = "made", "read"
    made = [v for n in compilation.graph if n in forward for v in n.outputs if graph.shape(v) is not None]
    for number, value in enumerate(made):
        nbytes = graph.nbytes(value) if graph.is_tensor(value) else 0
        network.add((value, "in"), (value, "out"), (nbytes << _TIES) + max((1 << 20) - number, 1))
        node = graph.writer(value)
        if not _is_elementwise(compilation, node) or value.is_graph_output():
            network.add(source, (value, "in"), INFINITE)
            continue
        for operand in node.inputs:
            if operand is not None and operand.producer() is not None:
                network.add((operand, "out"), (value, "in"), INFINITE)
    for value in late:
        network.add((value, "out"), sink, INFINITE)
    inside = network.source_side(*ends)
    return {v for v in made if (v, "in") in inside and (v, "out") not in inside}


def _is_elementwise(compilation: Compilation, node: ir.Node) -> bool:
    """True if a node may be computed again for a backward one: it moves nothing, or computes in one pass."""
    row = compilation.registry.operators.get((node.domain, node.op_type))
    known = node.op_type in _VIEWS or (row is not None and row.elementwise and node.op_type != "Dropout")
    static = all(v is None or not graph.is_dynamic(v) for v in (*node.inputs, *node.outputs))
    return known and static and len(node.outputs) == 1


def _chain(value: ir.Value, kept: Container[ir.Value]) -> set[ir.Node]:
    """The nodes that make a value of what is kept, of inputs and weights."""
    found: set[ir.Node] = set()
    waiting = [value]
    while waiting:
        wanted = waiting.pop()
        node = wanted.producer()
        if node is not None and node not in found and wanted not in kept:
            found.add(node)
            waiting += [v for v in node.inputs if v is not None]
    return found


def _names(nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    return tuple(node.name or "" for node in nodes)


def copy(main: ir.Graph, again: Again, copied: Copied | None = None) -> Mapping[str, str]:
    """Let the late readers read copies of what the nodes make; by name of a copy, the node's.

    Originals and copies that nobody reads are removed: no plan should compute them. `copied` holds copies of
    earlier calls, which are read too, and takes those of this one.

    Raises:
        ValueError: the graph lacks a node.
    """
    copied = {} if copied is None else copied
    named = {node.name: node for node in main}
    missing = [name for name in (*again.nodes, *again.readers) if name not in named]
    if missing:
        raise ValueError(f"node {missing[0]!r} is to be computed again or to read a copy, but there is none")
    values = {v.name for node in main for v in node.outputs} | set(main.initializers)
    values |= {v.name for v in main.inputs}
    late = frozenset(again.readers)
    place = next(node for node in main if node.name in late)
    made: dict[str, ir.Node] = {}
    for name in again.nodes:
        node = named[name]
        outputs = [
            value_like(v, _unused(v.name, values)) if v.name else ir.Value(name="") for v in node.outputs
        ]
        new = ir.Node(
            node.domain,
            node.op_type,
            [copied.get(v, v) for v in node.inputs],
            tuple(node.attributes.values()),
            outputs=outputs,
            version=node.version,
            name=_unused(name, named.keys()),
        )
        main.insert_before(place, new)
        copied.update(zip(node.outputs, outputs))
        made[name] = named[new.name] = new
        values |= {v.name for v in outputs}
    for name in again.readers:
        for index, value in enumerate(named[name].inputs):
            if value in copied:
                named[name].replace_input_with(index, copied[value])
    for node in (*reversed(made.values()), *(named[name] for name in reversed(again.nodes))):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            main.remove(node, safe=True)
    return {new.name or "": name for name, new in made.items() if new.graph is main}


def _unused(name: str | None, taken: Container[str | None]) -> str:
    """A name of a copy."""
    found, count = f"{name}.again", 1
    while found in taken:
        count += 1
        found = f"{name}.again{count}"
    return found
