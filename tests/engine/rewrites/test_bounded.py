"""Values whose size a run finds out, with places of a bounded size: models on own kernels beside onnxruntime."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from app.engine.core.calls import BodyCall, HostCall, Jump, KernelCall
from app.engine.report.functions import inlined, with_functions
from app.engine.rewrites.bounded import row_loops
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import OWN, Array
from tests.session import Session

N = 24
# From x: float[24, 4] and m: float[24], whose positive elements choose some rows.
CHOICE = "zero = Constant <value_float = 0.0> ()  chosen = Greater (m, zero)  "
PLACES = (
    CHOICE + "at = NonZero (chosen)  index = Transpose <perm = [1, 0]> (at)  "
    "spots = Abs (index)  rows = GatherND (x, spots)  "  # of the index itself it is a Compress
    "minus = Constant <value_ints = [-1]> ()  one = Constant <value_ints = [1]> ()  "
    "nil = Constant <value_ints = [0]> ()  two = Constant <value_ints = [2]> ()  "
)
LIMIT = "n = Shape (rows)  most = Constant <value_ints = [7]> ()  first = Slice (n, nil, one)  " \
    "both = Concat <axis = 0> (most, first)  k = ReduceMin (both, nil)  column = Constant <value_int = 1> ()  " \
    "score = Gather <axis = 1> (rows, column)  "  # fmt: skip
SUPPRESSED = (
    "box = Unsqueeze (rows, nil)  value = Gather <axis = 1> (rows, column)  ranks = Unsqueeze (value, nil)  "
    "ranked = Unsqueeze (ranks, nil)  many = Constant <value_ints = [9]> ()  "
    "overlap = Constant <value_floats = [0.4]> ()  kept = NonMaxSuppression (box, ranked, many, overlap)  "
    "last = Gather <axis = 1> (kept, two)  places = Squeeze (last, one)  "
)
SQUARE = "w = Constant <value = float[4, 4] {" + ", ".join(str(i / 8) for i in range(16)) + "}> ()  "
BODIES = {
    "rows": PLACES + "y = Identity (rows)",
    "elementwise": PLACES + "a = Sigmoid (rows)  b = Slice (x, nil, one)  c = Mul (a, b)  y = Add (c, rows)",
    "cast": PLACES + "a = Cast <to = 7> (rows)  b = Cast <to = 1> (a)  y = Sub (rows, b)",
    "two_axes": "zero = Constant <value_float = 0.0> ()  b = Greater (x, zero)  at = NonZero (b)  "
    "index = Transpose <perm = [1, 0]> (at)  spots = Abs (index)  y = GatherND (x, spots)",
    "mask": "zero = Constant <value_float = 0.0> ()  b = Greater (x, zero)  at = NonZero (b)  "
    "index = Transpose <perm = [1, 0]> (at)  a = GatherND (x, index)  y = Exp (a)",
    "compress": CHOICE + "a = Compress <axis = 0> (x, chosen)  y = Exp (a)",
    "compress_flat": CHOICE + "a = Compress (x, chosen)  y = Exp (a)",
    "reshape": PLACES + "s = Constant <value_ints = [-1, 2]> ()  a = Reshape (rows, s)  y = Neg (a)",
    "keep": PLACES + "s = Constant <value_ints = [0, 2, -1]> ()  a = Reshape (rows, s)  y = Neg (a)",
    "flat": PLACES + "a = Reshape (rows, minus)  y = Neg (a)",
    "squeeze": PLACES + "a = Unsqueeze (rows, one)  b = Exp (a)  c = Squeeze (b, one)  y = Transpose (c)",
    "slice_rows": PLACES + "e = Constant <value_ints = [5]> ()  a = Slice (rows, two, e)  y = Neg (a)",
    "slice_end": PLACES + "a = Slice (rows, one, minus)  y = Neg (a)",
    "slice_columns": PLACES + "a = Slice (rows, one, minus, one)  y = Neg (a)",
    "slice_to": PLACES
    + "s = Shape <start = 0, end = 1> (rows)  h = Div (s, two)  a = Slice (x, nil, h)  y = Neg (a)",
    "split": PLACES + "a, b = Split <axis = 1, num_outputs = 2> (rows)  y = Sub (b, a)",
    "beside": PLACES + "a = Exp (rows)  y = Concat <axis = 1> (rows, a)",
    "behind": PLACES
    + "less = Less (m, zero)  b = Compress <axis = 0> (x, less)  c = Concat <axis = 0> (rows, x, b)  "
    "y = Neg (c)",
    "sum": PLACES + "y = ReduceSum <keepdims = 0> (rows, nil)",
    "mean": PLACES + "a = ReduceMean (rows)  y = Sub (rows, a)",
    "max": PLACES
    + "a = ReduceMax <keepdims = 0> (rows, nil)  b = ReduceMin <keepdims = 0> (rows, nil)  y = Sub (a, b)",
    "along": PLACES + "y = ReduceMax <keepdims = 0> (rows, one)",
    "extremum": PLACES
    + "a = ArgMax <axis = 1, keepdims = 0> (rows)  b = ArgMin <axis = 0, keepdims = 0> (rows)  y = Concat <axis = 0> (a, b)",
    "shape": PLACES + "a = Shape (rows)  y = Mul (a, two)",
    "top": PLACES + LIMIT + "v, i = TopK (score, k)  y = Gather <axis = 0> (rows, i)",
    "bottom": PLACES + LIMIT + "v, i = TopK <largest = 0> (score, k)  y = Add (v, v)",
    "full": PLACES + LIMIT + "v, i = TopK (score, k)  s = Shape (v)  a = ConstantOfShape (s)  y = Sub (a, v)",
    "from_the_end": PLACES + "i = Constant <value_ints = [-1, 0, -2]> ()  y = Gather <axis = 0> (rows, i)",
    "boxes": PLACES
    + "column = Constant <value_int = 1> ()  "
    + SUPPRESSED
    + "y = Gather <axis = 0> (rows, places)",
    "branch": PLACES + "n = Size (rows)  none = Constant <value_int = 0> ()  empty = Equal (n, none)  "
    "column = Constant <value_int = 1> ()  few = Constant <value_ints = [3]> ()  "
    "keep = If (empty) <then_branch = t () => (int64[s] p) { p = Constant <value = int64[0] {}> () }, "
    "else_branch = e () => (int64[q] places) { " + SUPPRESSED + "}>  some = Slice (keep, nil, few)  "
    "y = Gather <axis = 0> (rows, some)",
}
IMAGES = (
    PLACES + "sides = Constant <value_ints = [-1, 1, 2, 2]> ()  images = Reshape (rows, sides)  "
    "k = Constant <value = float[3, 1, 2, 2] {" + ", ".join(str(i / 8) for i in range(12)) + "}> ()  "
)
BODIES |= {
    "product": PLACES + SQUARE + "a = MatMul (rows, w)  y = Relu (a)",
    "product_behind": PLACES + SQUARE + "t = Transpose (rows)  y = MatMul (w, t)",
    "dense": PLACES + SQUARE + "b = Gather <axis = 0> (x, nil)  y = Gemm <transB = 1> (rows, w, b)",
    "softmax": PLACES + "a = Softmax <axis = 1> (rows)  y = Exp (a)",
    "norm": PLACES
    + "s = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()  y = LayerNormalization <axis = -1> (rows, s)",
    "sums": PLACES + "column = Constant <value_int = 1> ()  y = CumSum (rows, column)",
    "pad": PLACES + "p = Constant <value_ints = [0, 1, 0, 2]> ()  y = Pad (rows, p)",
    "conv": IMAGES + "a = Conv <pads = [1, 1, 1, 1]> (images, k)  y = Flatten (a)",
    "pool": IMAGES + "y = MaxPool <kernel_shape = [2, 2], strides = [1, 1]> (images)",
    "enlarged": IMAGES
    + 'n = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()  y = Resize <mode = "nearest"> (images, , n)',
}
BODIES |= {
    "two_products": PLACES
    + SQUARE
    + "a = MatMul (rows, w)  b = Tanh (a)  c = MatMul (b, w)  d = Add (c, a)  "
    "e = MatMul (b, w)  f = Softmax <axis = 1> (e)  y = Concat <axis = 1> (d, f, rows)",
    "product_taken": PLACES + SQUARE + "a = MatMul (rows, w)  "
    "i = Constant <value_ints = [-1, 0, -2]> ()  y = Gather <axis = 0> (a, i)",
    "product_that_chooses": PLACES
    + SQUARE
    + "a = MatMul (rows, w)  column = Constant <value_int = 1> ()  second = Gather <axis = 1> (a, column)  "
    "level = Constant <value_float = 4.0> ()  large = Greater (second, level)  found = NonZero (large)  "
    "t = Squeeze (found, nil)  y = Gather <axis = 0> (a, t)",
    "product_of_pairs": PLACES + SQUARE + "a = MatMul (rows, w)  s = Constant <value_ints = [-1, 2]> ()  "
    "b = Reshape (a, s)  c = Neg (b)  y = ReduceSum <keepdims = 0> (c, nil)",
}
BODIES |= {
    "numbers": PLACES
    + "n = Shape <start = 0, end = 1> (rows)  k = Squeeze (n)  two_ = Constant <value_int = 2> ()  "
    "step = Constant <value_int = 1> ()  r = Range (two_, k, step)  f = Cast <to = 1> (r)  y = Sqrt (f)",
    "reshape_to_its_shape": PLACES
    + "n = Shape (rows)  first = Constant <value_int = 0> ()  k = Gather (n, first)  u = Unsqueeze (k, nil)  "
    "s = Concat <axis = 0> (u, two, minus)  a = Reshape (rows, s)  y = Neg (a)",
    "reshape_to_its_length": PLACES + "n = Shape <start = 0, end = 1> (rows)  "
    "t = Transpose (rows)  sides = Constant <value_ints = [2, 2, -1]> ()  c = Reshape (t, sides)  "
    "s2 = Concat <axis = 0> (two, two, n)  d = Reshape (t, s2)  y = Sub (c, d)",
}
PLACED = (  # indices of the rows that were chosen, and how many these are
    PLACES + "places = Squeeze (at, nil)  n = Shape <start = 0, end = 1> (rows)  "
    "four = Constant <value_ints = [4]> ()  both = Concat <axis = 0> (n, four)  column = Constant <value_int = 1> ()  "
)
BEHIND = (  # a value with as many rows, into which those are scattered that are positive
    PLACED
    + "zeros = ConstantOfShape (both)  second = Gather <axis = 1> (rows, column)  level = Constant <value_float = 2.0> ()  "
    "high = Greater (second, level)  found = NonZero (high)  "
    "some = Squeeze (found, nil)  taken = Gather <axis = 0> (rows, some)  "
    "first = Constant <value_int = 0> ()  tall = Shape (taken)  k = Gather (tall, first)  "
    "k1 = Unsqueeze (k, nil)  wide = Concat <axis = 0> (k1, four)  "
)
BODIES |= {
    "expand": PLACED + "t = Slice (x, nil, one)  a = Expand (t, both)  y = Add (a, rows)",
    "expand_rows": PLACED + "u = Unsqueeze (rows, one)  three = Constant <value_ints = [3]> ()  "
    "s = Concat <axis = 0> (n, three, four)  a = Expand (u, s)  y = Neg (a)",
    "expand_where": PLACED
    + "ones = Constant <value_ints = [1, 1]> ()  less = Constant <value_ints = [-1, -1]> ()  "
    "is = Equal (both, less)  s = Where (is, ones, both)  t = Slice (x, nil, one)  a = Expand (t, s)  y = Neg (a)",
    "full_rows": PLACED + "a = ConstantOfShape <value = float[1] {2.5}> (both)  y = Mul (a, rows)",
    "slice_to_its_length": PLACED
    + "t = Transpose (rows)  a = Exp (t)  b = Slice (a, nil, n, one)  c = Transpose (b)  y = Add (c, rows)",
    "scatter_nd": BEHIND
    + "where = Unsqueeze (some, one)  a = ScatterND (zeros, where, taken)  y = Add (a, rows)",
    "scatter_from_the_end": BEHIND
    + "where = Unsqueeze (some, one)  back = Sub (where, n)  a = ScatterND (zeros, back, taken)  y = Add (a, rows)",
    "scatter_elements": BEHIND
    + "where = Unsqueeze (some, one)  each = Expand (where, wide)  a = ScatterElements (zeros, each, taken)  "
    "t = Sigmoid (taken)  b = ScatterElements (a, each, t)  y = Add (b, rows)",
    "product_scattered": BEHIND
    + SQUARE
    + "where = Unsqueeze (some, one)  p = MatMul (taken, w)  a = ScatterND (zeros, where, p)  y = Add (a, rows)",
    "scatter_into_all": PLACED
    + "where = Unsqueeze (places, one)  a = Exp (rows)  y = ScatterND (x, where, a)",
    "scatter_sum": PLACED + "where = Unsqueeze (places, one)  half = Div (where, two)  r = Exp (rows)  "
    'y = ScatterND <reduction = "add"> (x, half, r)',
    "regions": PLACED + "image = Constant <value = float[1, 1, 3, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9}> ()  "
    "zero_ = Constant <value_float = 0.0> ()  which = ConstantOfShape <value = int64[1] {0}> (n)  "
    "a = RoiAlign <output_height = 2, output_width = 2> (image, rows, which)  y = Neg (a)",
}
TURNS = (
    "float[4] s) => (bool d, float[4] r, float[4] o, float[2, 4] p) {{ r = Sin (s)  o = Cos (r)  "
    "both = Concat <axis = 0> (s, r)  sides = Constant <value_ints = [2, 4]> ()  p = Reshape (both, sides)  {} }}> "
)
BODIES |= {
    "turns": PLACES
    + "n = Size (rows)  yes = Constant <value = bool {1}> ()  first = ReduceMean <keepdims = 0> (x, nil)  "
    + "last, a, b = Loop (n, yes, first) <body = turn (int64 i, bool c, "
    + TURNS.format("d = Identity (c)")
    + "e = Exp (a)  y = Add (e, last)",
    "turns_until": CHOICE
    + "n = Constant <value_int = 9> ()  yes = Constant <value = bool {1}> ()  "
    + "nil = Constant <value_ints = [0]> ()  first = ReduceMean <keepdims = 0> (x, nil)  "
    + "limit = ReduceSum <keepdims = 0> (m)  last, a, y = Loop (n, yes, first) <body = turn (int64 i, bool c, "
    + TURNS.format("sum = ReduceSum <keepdims = 0> (r)  d = Less (sum, limit)"),
}
KINDS = {"shape": "int64[r]", "extremum": "int64[a, b]"}
NEEDS_SOME = (
    "max",
    "extremum",
    "from_the_end",
    "product_taken",
    "mean",
    "reshape_to_its_shape",
    "slice_end",
    "keep",
)  # onnxruntime refuses none there


def model_of(name: str, folder: Path) -> Path:
    body = f"{{ {BODIES[name]} }}"
    text = f"g (float[{N}, 4] x, float[{N}] m) => (float[] y) {body}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    (result,) = model.graph.output
    if name in KINDS:
        result.type.tensor_type.elem_type = onnx.TensorProto.INT64
    result.type.tensor_type.ClearField("shape")
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def masks() -> list[Array]:
    random = np.random.default_rng(0)
    some = [random.uniform(-1, share, N).astype(np.float32) for share in (1.0, 4.0, 0.2)]
    return [*some, np.ones(N, np.float32), -np.ones(N, np.float32)]


def inputs(mask: Array) -> dict[str, Array]:
    random = np.random.default_rng(1)
    corner = random.uniform(0, 5, (N, 2))
    x = np.concatenate([corner, corner + random.uniform(1, 4, (N, 2))], 1).astype(np.float32)
    return {"x": x, "m": mask}


def check(name: str, session: Session, path: Path) -> None:
    """Compare runs for each mask with onnxruntime, of the program and of the model that it is exported as."""
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    flat = inlined(with_functions(session.program.compilation))
    exported = onnxruntime.InferenceSession(flat.SerializeToString(), providers=["CPUExecutionProvider"])
    for mask in masks()[: -1 if name in NEEDS_SOME else None]:
        given = inputs(mask)
        (expected,) = theirs.run(None, given)
        for found in (session.run(given)["y"], exported.run(None, given)[0]):
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6, atol=1e-6, strict=True)


@pytest.mark.parametrize("name", BODIES)
def test_what_reads_values_of_unknown_size_runs_on_own_kernels(
    compiler: Compiler, tmp_path: Path, name: str
) -> None:
    path = model_of(name, tmp_path)
    target = dataclasses.replace(host(), backends=OWN)
    session = Session(path, compiler, target=target, poison=True)
    steps = session.program.steps
    assert not any(s.is_fallback for s in steps), [s.group for s in steps if s.is_fallback]
    calls = [c.node.op_type for s in steps for c in s.calls if isinstance(c, HostCall)]
    assert set(calls) <= {"Prefix"}, calls
    check(name, session, path)
    session.close()


@pytest.mark.parametrize(
    "name",
    ["product", "dense", "softmax", "norm", "conv", "pool", "regions", "enlarged", "pad", "two_products", "product_taken",
     "product_scattered", "product_that_chooses", "product_of_pairs"],
)  # fmt: skip
def test_heavy_rows_are_computed_in_as_many_turns_as_a_run_needs(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(row_loops, "HEAVY", 0.0)
    monkeypatch.setattr(row_loops, "OF_A_TURN", 1.0)
    monkeypatch.setattr(row_loops, "ROWS", 4)
    path = model_of(name, tmp_path)
    session = Session(path, compiler, target=dataclasses.replace(host(), backends=OWN), poison=True)
    loops = [s for s in session.program.steps if s.group.op == "Loop"]
    assert loops, [s.group for s in session.program.steps]
    assert all(isinstance(c, KernelCall | BodyCall | Jump) for s in loops for c in s.calls)
    check(name, session, path)
    session.close()


def test_values_that_may_be_large_stay_of_unknown_size(compiler: Compiler, tmp_path: Path) -> None:
    text = "g (float[2048, 2048] x) => (float[n] y) { a = NonZero (x)  y = Cast <to = 1> (a) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    session = Session(path, compiler, target=dataclasses.replace(host(), backends=OWN))
    assert session.program.arena_bytes < 2**24
    session.close()
