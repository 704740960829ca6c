"""Compute values again for late readers, in place of keeping them: more work, fewer bytes alive.

Source: Chen et al., 2016, "Training deep nets with sublinear memory cost", arXiv:1604.06174, section 4.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from app.engine.core.plan import Compilation
from app.engine.core.rewriter import value_like
from app.engine.types.options import Again


@dataclass(frozen=True, slots=True)
class Rematerialize:
    """Apply `concessions.again`, in its order: nodes are copied ahead of the first of the late readers."""

    name: ClassVar[str] = "rematerialize"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """The compilation with the copies in its graph, in place; a copy has what its node is bound to."""
        for index, again in enumerate(compilation.concessions.recompute):
            copies = copy(compilation.graph, again)
            compilation = replace(
                compilation,
                options=replace(compilation.options, exact=_inherited(compilation.options.exact, copies)),
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


def copy(graph: ir.Graph, again: Again) -> Mapping[str, str]:
    """Let the late readers read copies of what the nodes make; by name of a copy, the node's.

    Originals and copies that nobody reads are removed: no plan should compute them.

    Raises:
        ValueError: the graph lacks a node.
    """
    named = {node.name: node for node in graph}
    missing = [name for name in (*again.nodes, *again.readers) if name not in named]
    if missing:
        raise ValueError(f"node {missing[0]!r} is to be computed again or to read a copy, but there is none")
    values = {v.name for node in graph for v in node.outputs} | set(graph.initializers)
    values |= {v.name for v in graph.inputs}
    late = frozenset(again.readers)
    place = next(node for node in graph if node.name in late)
    copied: dict[ir.Value | None, ir.Value] = {}
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
        graph.insert_before(place, new)
        copied.update(zip(node.outputs, outputs))
        made[name] = named[new.name] = new
        values |= {v.name for v in outputs}
    for name in again.readers:
        for index, value in enumerate(named[name].inputs):
            if value in copied:
                named[name].replace_input_with(index, copied[value])
    for node in (*reversed(made.values()), *(named[name] for name in reversed(again.nodes))):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
    return {new.name or "": name for name, new in made.items() if new.graph is graph}


def _unused(name: str | None, taken: Container[str | None]) -> str:
    """A name of a copy."""
    found, count = f"{name}.again", 1
    while found in taken:
        count += 1
        found = f"{name}.again{count}"
    return found
