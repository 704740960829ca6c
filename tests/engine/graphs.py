"""Random graphs for property tests, and a registry whose rows say what a test needs."""

from collections.abc import Callable

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.registry import Backend, Implementation, Operator, PlanningContext, Registry


def random_graph(choices: list[int], nodes: int) -> ir.Model:
    """A connected graph of unary, binary and heavy nodes; `choices` decides the wiring."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))
    values, made = [x], []
    draw = iter(choices)
    for index in range(nodes):
        kind = next(draw) % 4
        first = values[next(draw) % len(values)]
        second = values[next(draw) % len(values)]
        op, inputs = (
            ("Relu", [first]),
            ("Add", [first, second]),
            ("Heavy", [first]),
            ("Odd", [first, second]),
        )[kind]
        node = ir.node(op, inputs, name=f"n{index}")
        output = node.outputs[0]
        output.name, output.type, output.shape = f"v{index}", x.type, x.shape
        values.append(output)
        made.append(node)
    unread = [v for v in values[1:] if not v.uses()]
    return ir.Model(ir.Graph([x], unread, nodes=made, opset_imports={"": 21}, name="random"), ir_version=10)


def accepts(test: Callable[[Group], bool]) -> Callable[[Group, PlanningContext], str | None]:
    return lambda group, _context: None if test(group) else "the test refuses it"


def registry(*rows: Implementation) -> Registry:
    operators = (Operator("Relu", elementwise=True), Operator("Add", elementwise=True))
    table: dict[str, tuple[Implementation, ...]] = {}
    for row in rows:
        table[row.op] = (*table.get(row.op, ()), row)
    backends = {name: Backend(name, ("cpu",)) for name in ("numba-cpu", "reference")}
    return Registry({("", o.op): o for o in operators}, table, backends)


def row(
    name: str, op: str, backend: str = "numba-cpu", test: Callable[[Group], bool] = lambda _group: True
) -> Implementation:
    return Implementation(name, op, backend, accepts(test), lambda _group, _context: ())


ALL_ROWS = (
    row("elementwise", "Elementwise"),
    row("heavy", "Heavy"),
    row("fallback", "*", "reference"),
)


def reaches(adjacency: dict[object, set[object]], start: object) -> set[object]:
    seen: set[object] = set()
    stack = list(adjacency.get(start, ()))
    while stack:
        item = stack.pop()
        if item not in seen:
            seen.add(item)
            stack.extend(adjacency.get(item, ()))
    return seen


def quotient(graph: ir.Graph, part: Callable[[ir.Node], object]) -> dict[object, set[object]]:
    edges: dict[object, set[object]] = {}
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and part(producer) != part(node):
                edges.setdefault(part(producer), set()).add(part(node))
    return edges


__all__ = ["ALL_ROWS", "quotient", "random_graph", "reaches", "registry", "row"]
