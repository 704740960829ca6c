"""What backward nodes find again: the least bytes that elementwise nodes make the rest of, by enumeration."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.gradient import marks
from app.engine.passes.rematerialize import Rematerialize
from app.engine.types.options import Options
from app.engine.types.target import host
from tests.engine.gradient.derivatives import by_reference

UNARY, BINARY = ("Sin", "Tanh", "Neg", "Exp"), ("Add", "Mul")


def random_graph(seed: int) -> ir.Model:
    """Forward nodes of two sizes; products that stand for backward nodes read some of their values."""
    rng = np.random.default_rng(seed)
    lines, values = [], [("x", 4)]
    for i in range(7):
        kind = rng.choice(("unary", "binary", "heavy", "sum"), p=(0.35, 0.3, 0.2, 0.15))
        name, width = values[rng.integers(len(values))]
        if kind == "binary":
            other, second = values[rng.integers(len(values))]
            lines.append(f"v{i} = {rng.choice(BINARY)}({name}, {other})")
            width = max(width, second)
        elif kind == "sum":
            lines.append(f"v{i} = ReduceSum<keepdims=1>({name}, last)")
            width = 1
        elif kind == "heavy":
            lines.append(f"v{i} = Softmax<axis=0>({name})")
        else:
            lines.append(f"v{i} = {rng.choice(UNARY)}({name})")
        values.append((f"v{i}", width))
    read = [values[1 + i][0] for i in sorted(rng.choice(7, 4, replace=False))]
    lines.append(f"loss = Sum({', '.join(n for n, _ in values)})")
    lines += [f"g{k} = Mul(dy, {name})" for k, name in enumerate(read)]
    outputs = ", ".join(f"float[2,{dict(values)[n]}] g{k}" for k, n in enumerate(read))
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x, float[1,1] dy) => (float[2,4] loss, {outputs}) '
        f"<int64[1] last = {{1}}> {{ {' '.join(lines)} }}"
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    marks.mark(model, [f"g{k}" for k in range(4)])
    for number, node in enumerate(model.graph):
        node.name = f"n{number}"
    return model


def is_cheap(node: ir.Node) -> bool:
    return node.op_type in (*UNARY, *BINARY, "Sum")


def least(model: ir.Model, late: list[ir.Value]) -> int:
    """Bytes of the smallest set of values that all late ones are elementwise functions of."""
    made = [v for n in model.graph for v in n.outputs if v.name and v.name.startswith("v")]

    def reached(value: ir.Value, kept: set[ir.Value]) -> bool:
        node = value.producer()
        if value in kept or node is None:
            return True
        return is_cheap(node) and all(reached(v, kept) for v in node.inputs if v is not None)

    sizes = {v: int(np.prod(v.shape.numpy())) * 4 for v in made if v.shape is not None}
    chosen = itertools.chain.from_iterable(itertools.combinations(made, n) for n in range(len(made) + 1))
    return min(sum(sizes[v] for v in kept) for kept in chosen if all(reached(v, set(kept)) for v in late))


@pytest.mark.parametrize("seed", range(25))
def test_backward_nodes_read_the_fewest_bytes_of_the_forward_part(seed: int) -> None:
    model = random_graph(seed)
    names = {f"g{k}" for k in range(4)}
    proto = ir.to_proto(model)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 4)).astype("f4"), "dy": np.full((1, 1), 0.5, "f4")}
    before = by_reference(proto, inputs)
    forward = {n.name for n in marks.forward_nodes(model.graph, names)}
    late = [
        v
        for n in model.graph
        if n.name in forward
        for v in n.outputs
        if any(u.node.name not in forward for u in v.uses())
    ]
    expected = least(model, late)
    compilation = Compilation(model, host(), load_registry(), Options())
    changed = Rematerialize()(compilation).model
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)  # in an order of execution
    kept = {
        v for n in changed.graph if n.name in forward for v in n.outputs
        if any(u.node.name not in forward for u in v.uses())
    }  # fmt: skip
    assert sum(int(np.prod(v.shape.numpy())) * 4 for v in kept if v.shape is not None) == expected
    after = by_reference(ir.to_proto(changed), inputs)
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_graphs_without_gradients_stay_as_they_are() -> None:
    model = random_graph(0)
    model.metadata_props.clear()
    before = [n.name for n in model.graph]
    changed = Rematerialize()(Compilation(model, host(), load_registry(), Options())).model
    assert [n.name for n in changed.graph] == before
