"""Names: every node and value of a model has one, and none is used twice."""

import onnx_ir as ir


def make_unique(model: ir.Model) -> None:
    """Rename what has no name or shares one; inputs and outputs of the main graph keep theirs.

    A node without a name is called by its operator and its main output, `Conv conv1_out`.

    Nested graphs count as part of the model: names are unique across all of them.
    """
    main = model.graph
    taken: set[str] = set()
    done: set[ir.Value] = set()
    nodes: set[str] = set()

    def name(value: ir.Value, fallback: str) -> None:
        if value not in done:
            done.add(value)
            value.name = free(value.name or fallback, taken)

    for value in (*main.inputs, *main.outputs):
        name(value, "value")
    for graph in model.graphs():
        for value in (*graph.inputs, *tuple(graph.initializers.values())):
            name(value, "value")
    for node in main.all_nodes():
        for index, value in enumerate(node.outputs):
            if value.name or value.uses() or value.is_graph_output():
                name(value, f"{node.name or node.op_type}.{index}")
        node.name = free(node.name or f"{node.op_type} {node.outputs[0].name}", nodes)


def free(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken; takes it."""
    free, count = name, 0
    while free in taken:
        count += 1
        free = f"{name}.{count}"
    taken.add(free)
    return free
