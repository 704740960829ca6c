"""Groups have one root, cover the graph once and form no cycle."""

import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.passes.fuse import Fuse
from app.engine.passes.partition import Partition
from app.engine.types.target import Target
from tests.engine.graphs import ALL_ROWS, quotient, random_graph, reaches, registry, row

TARGET = Target("test")
GRAPHS = st.integers(2, 14).flatmap(
    lambda n: st.lists(st.integers(0, 99), min_size=3 * n, max_size=3 * n).map(lambda c: random_graph(c, n))
)


def fused(model: ir.Model, *rows, enabled: bool = True) -> tuple[Group, ...]:
    start = Compilation(model, TARGET, registry(*(rows or ALL_ROWS)))
    return Fuse(enabled=enabled)(Partition()(start)).plan.groups


def names(groups: tuple[Group, ...]) -> list[list[str]]:
    return [[n.name for n in g.nodes] for g in groups]


def chain(*ops: str) -> ir.Model:
    """x -> op -> op ...; an Add also reads x."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))
    value, nodes = x, []
    for index, op in enumerate(ops):
        node = ir.node(op, [value, x] if op == "Add" else [value], name=f"n{index}")
        value = node.outputs[0]
        value.name, value.type, value.shape = f"v{index}", x.type, x.shape
        nodes.append(node)
    return ir.Model(ir.Graph([x], [value], nodes=nodes, opset_imports={"": 21}), ir_version=10)


@settings(max_examples=200, deadline=None)
@given(GRAPHS)
def test_groups_cover_the_graph_once_and_form_no_cycle(model) -> None:
    groups = fused(model)
    assert sorted(n.name for g in groups for n in g.nodes) == sorted(n.name for n in model.graph)
    part = {n: g for g in groups for n in g.nodes}
    edges = quotient(model.graph, part.__getitem__)
    assert all(group not in reaches(edges, group) for group in edges)


@settings(max_examples=200, deadline=None)
@given(GRAPHS)
def test_only_the_last_node_of_a_group_is_read_outside(model) -> None:
    outputs = set(model.graph.outputs)
    for group in fused(model):
        inside = set(group.nodes)
        for node in group.nodes[:-1]:
            value = node.outputs[0]
            assert value not in outputs
            assert all(reader in inside for reader in value.consumers())
        assert group.outputs == group.nodes[-1].outputs


def test_an_epilogue_takes_what_follows_its_anchor() -> None:
    assert names(fused(chain("Heavy", "Add", "Relu", "Heavy"))) == [["n0", "n1", "n2"], ["n3"]]


def test_an_epilogue_shrinks_to_what_an_implementation_accepts() -> None:
    rows = (
        row("elementwise", "Elementwise"),
        row("heavy", "Heavy", test=lambda g: [n.op_type for n in g.epilogue] in ([], ["Add"])),
    )
    assert names(fused(chain("Heavy", "Add", "Relu"), *rows)) == [["n0", "n1"], ["n2"]]


def test_a_residual_sum_goes_to_the_later_producer() -> None:
    # n0 and n1 are heavy and both read x; n2 adds them.
    model = random_graph([2, 0, 0, 2, 0, 0, 1, 1, 2], 3)
    assert names(fused(model)) == [["n0"], ["n1", "n2"]]


def test_without_fusion_every_node_is_a_group() -> None:
    model = chain("Heavy", "Add", "Relu")
    assert names(fused(model, *ALL_ROWS, enabled=False)) == [["n0"], ["n1"], ["n2"]]
