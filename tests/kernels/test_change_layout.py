"""Images between row-major memory and channel-blocked or channels last."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core.group import Group
from app.engine.core.registry import load
from app.kernels.cpu.runtime.compiler import Compiler, call
from tests import harness

Array = np.ndarray[Any, Any]
REGISTRY = load()
BLOCK, UNBLOCK, SAME_BLOCK, SAME_UNBLOCK = (
    harness.implementation(name, REGISTRY)
    for name in ("layout.block", "layout.unblock", "layout.block.same", "layout.unblock.same")
)


def change(*shape: int, op: str = "ChangeLayout", kind: str = "float32") -> Group:
    """A group of one node that the planner, not a model, makes."""
    element, extents = ir.TensorType(ir.DataType.from_numpy(np.dtype(kind))), ir.Shape(shape)
    x = ir.Value(name="x", shape=extents, type=element)
    node = ir.Node("stowplan", op, [x], num_outputs=1)
    (y,) = node.outputs
    y.name, y.shape, y.type = "y", extents, element
    return Group((node,), node, (x,), (y,), op)


TO_LAST, FROM_LAST = (harness.implementation(f"layout.{n}", REGISTRY) for n in ("to_last", "from_last"))
SHAPES = [(2, 3, 9, 11), (1, 33, 1, 5), (1, 8, 64, 33), (3, 20, 4, 4), (1, 16, 1, 1), (2, 40, 1, 3)]


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", [BLOCK, UNBLOCK, TO_LAST, FROM_LAST], ids=lambda row: row.name)
def test_every_element_arrives(compiler: Compiler, row: Any, shape: tuple[int, ...], lanes: int) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (y,) = harness.run_group(row, change(*shape), {"x": x}, compiler, threads=2, lanes=lanes)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", [TO_LAST, FROM_LAST], ids=lambda row: row.name)
def test_integers_have_channels_last_but_no_blocks(
    compiler: Compiler, row: Any, shape: tuple[int, ...], dtype: str
) -> None:
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    group = change(*shape, kind=dtype)
    (y,) = harness.run_group(row, group, {"x": x}, compiler, threads=2)
    np.testing.assert_array_equal(y, x)
    assert "is for float32" in str(BLOCK.rejection(group, harness.context(lanes=8)))


@pytest.mark.parametrize("pixels", [5, 35])
def test_padded_lanes_become_zero(compiler: Compiler, pixels: int) -> None:
    x, y = np.ones((1, 3, pixels), np.float32), np.full((1, 1, pixels, 8), np.nan, np.float32)
    kernel = compiler.compile(
        "app.kernels.cpu.nchwc_copy:emit_block", ("float32*", "float32*", *("int64",) * 4), (8,)
    )
    call(kernel, x.ctypes.data, y.ctypes.data, 1, 3, pixels, 1024, 0, 1)
    np.testing.assert_array_equal(y, np.broadcast_to([1, 1, 1, 0, 0, 0, 0, 0], y.shape))


@pytest.mark.parametrize("row", [SAME_BLOCK, SAME_UNBLOCK], ids=lambda row: row.name)
def test_one_pixel_of_whole_blocks_is_a_view(row: Any) -> None:
    known = harness.context(lanes=8)
    group = change(2, 16, 1, 1)
    assert row.rejection(group, known) is None
    assert row.lower(group, known) == ()
    assert row.views(group, known) == ((group.inputs[0], group.outputs[0], 0),)
    for shape in ((2, 16, 1, 2), (2, 12, 1, 1)):
        assert "differ" in str(row.rejection(change(*shape), known))


LAST = {"transpose.unblock": (0, 2, 3, 1), "transpose.block": (0, 3, 1, 2)}


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("shape", [(2, 3, 3, 11), (1, 33, 1, 5), (3, 40, 4, 9), (1, 16, 1, 1)])
@pytest.mark.parametrize("name", LAST)
def test_a_transpose_reads_or_writes_blocks(
    compiler: Compiler, name: str, shape: tuple[int, ...], lanes: int
) -> None:
    """Images of this shape, with channels last on the other side."""
    perm, row = LAST[name], harness.implementation(name, REGISTRY)
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = image if name == "transpose.unblock" else image.transpose(0, 2, 3, 1)
    extents = [",".join(map(str, s)) for s in (x.shape, x.transpose(perm).shape)]
    model = harness.model_of(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{extents[0]}] x) => (float[{extents[1]}] y)'
        f" {{ y = Transpose<perm = {list(perm)}>(x) }}"
    )
    group = harness.group_of(model, REGISTRY)
    (y,) = harness.run_group(row, group, {"x": x}, compiler, threads=2, lanes=lanes)
    np.testing.assert_array_equal(y, x.transpose(perm))


def test_other_transposes_move_elements_within_blocks() -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,8,2,3] x) => (float[1,8,3,2] y)'
    model = harness.model_of(f"{text} {{ y = Transpose<perm = [0, 1, 3, 2]>(x) }}")
    row = harness.implementation("transpose.unblock", REGISTRY)
    assert "differ by (0, 2, 3, 1)" in str(
        row.rejection(harness.group_of(model, REGISTRY), harness.context())
    )


@pytest.mark.parametrize(
    ("name", "perm"), [("transpose.from_last", [0, 2, 3, 1]), ("transpose.to_last", [0, 3, 1, 2])]
)
def test_a_transpose_to_or_from_channels_last_is_a_view(name: str, perm: list[int]) -> None:
    row, known = harness.implementation(name, REGISTRY), harness.context()
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1,8,2,3] x) => (float[] y)'
    group = harness.group_of(harness.model_of(f"{text} {{ y = Transpose<perm = {perm}>(x) }}"), REGISTRY)
    assert row.rejection(group, known) is None
    assert row.lower(group, known) == ()
    (x,), (y,) = group.inputs, group.outputs
    assert row.views(group, known) == ((x, y, 0),)
    assert [v.name for v in row.layouts(group, known)] == ["x" if name.endswith("from_last") else "y"]
    assert [str(at) for at in row.layouts(group, known).values()] == ["NHWC"]
