"""Convolutions of volumes become those of slices: which operators follow, and that they compute the same."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.rewrites.as_images import conv3d
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.oracle import evaluate
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import Array, assert_same_outputs, canonical, saved
from tests.harness import assert_close

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(7)
ROWS = conv3d.rows("numba-cpu")
MOVES = "Reshape", "Transpose", "Slice", "Pad"


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


WEIGHTS = {
    "w": normal(6, 4, 3, 3, 3),
    "flat": normal(6, 4, 1, 3, 3),
    "deep": normal(6, 6, 3, 1, 1),
    "point": normal(6, 6, 1, 1, 1),
    "single": normal(8, 1, 3, 3, 3),
    "bias": normal(6),
    "slope": normal(6, 1, 1, 1),
    "scale": normal(1, 6, 1, 1, 1),
    "frames": normal(1, 1, 7, 1, 1),
}
SAME = "pads = [1, 1, 1, 1, 1, 1]"
CONV = f"c = Conv<{SAME}>(x, w)"  # float[1,6,7,8,9]


def model(folder: Path, body: str, out: str, x: str = "1,4,7,8,9") -> Path:
    text = f"{HEAD} g (float[{x}] x) => (float[{out}] y) {{ {body} }}"
    return saved(text, folder, {name: array for name, array in WEIGHTS.items() if name in body})


def rewritten(path: Path) -> Compilation:
    found = canonical(path, rewrites=ROWS)
    assert_same_outputs(path, found)
    return found


def ranks(compilation: Compilation) -> set[int]:
    """Axes of the first outputs of what computes."""
    return {len(graph.static_shape(n.outputs[0])) for n in compilation.graph if n.op_type not in MOVES}


@pytest.mark.parametrize(
    ("body", "out"),
    [
        ("y = Conv(x, w)", "1,6,5,6,7"),
        ("y = Conv(x, w, bias)", "1,6,5,6,7"),
        (f"y = Conv<{SAME}>(x, w)", "1,6,7,8,9"),
        (
            "y = Conv<pads = [2, 1, 0, 0, 1, 2], strides = [2, 1, 2], dilations = [2, 2, 1]>(x, w)",
            "1,6,3,6,5",
        ),
        ("y = Conv<strides = [3, 2, 1]>(x, flat)", "1,6,3,3,7"),
        (f"{CONV} y = Relu(c)", "1,6,7,8,9"),
        (f"{CONV} y = PRelu(c, slope)", "1,6,7,8,9"),
        (f"{CONV} s = Mul(c, scale) y = Add(s, frames)", "1,6,7,8,9"),
        (
            f"{CONV} d = Conv<pads = [1, 0, 0, 1, 0, 0]>(c, deep) e = Add(c, d) y = Conv(e, point)",
            "1,6,7,8,9",
        ),
        (f"{CONV} d = Conv(c, point) y = Concat<axis = 1>(c, d)", "1,12,7,8,9"),
        (
            f"{CONV} y = MaxPool<kernel_shape = [1, 3, 3], strides = [1, 2, 2], pads = [0, 1, 1, 0, 1, 1]>(c)",
            "1,6,7,4,5",
        ),
        (f"{CONV} y = AveragePool<kernel_shape = [1, 2, 2], strides = [1, 2, 2]>(c)", "1,6,7,4,4"),
    ],
)
def test_it_and_what_follows_compute_on_slices(tmp_path: Path, body: str, out: str):
    assert ranks(rewritten(model(tmp_path, body, out))) == {4}


@pytest.mark.parametrize(
    ("body", "out", "x"),
    [
        (f"{CONV} y = MaxPool<kernel_shape = [2, 2, 2], strides = [2, 2, 2]>(c)", "1,6,3,4,4", "1,4,7,8,9"),
        (f"{CONV} y = Concat<axis = 2>(c, c)", "1,6,14,8,9", "1,4,7,8,9"),
        (f"{CONV} y = GlobalAveragePool(c)", "1,6,1,1,1", "1,4,7,8,9"),
    ],
)
def test_what_reads_across_slices_reads_the_volume(tmp_path: Path, body: str, out: str, x: str):
    assert ranks(rewritten(model(tmp_path, body, out, x))) == {4, 5}


@pytest.mark.parametrize(
    ("body", "out", "x"),
    [
        ("y = Conv(x, w)", "2,6,5,6,7", "2,4,7,8,9"),
        ("y = Conv<group = 4>(x, single)", "1,8,5,6,7", "1,4,7,8,9"),
    ],
)
def test_batches_and_groups_stay_volumes(tmp_path: Path, body: str, out: str, x: str):
    assert ranks(rewritten(model(tmp_path, body, out, x))) == {5}


def test_a_plan_of_slices_computes_the_volume(tmp_path: Path):
    body = f"{CONV} r = Relu(c) d = Conv<{SAME}>(x, w, bias) e = Add(r, d) y = Conv(e, point)"
    path = model(tmp_path, body, "1,6,7,8,9")
    options = Options(autotune=False, backends=("numba-cpu",), choose="first")
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    feeds = {"x": normal(1, 4, 7, 8, 9)}
    program = session.planned(compilation, options)
    executor = Executor(program, Compiler(tmp_path / "kernels"), poison=True)
    found, expected = executor.run(feeds)["y"], evaluate(load(path).model, feeds)["y"]
    executor.close()
    assert_close(np.asarray(found), np.asarray(expected), 1e-4)
