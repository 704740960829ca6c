"""The proof that stacked requests are computed apart, held against runs of random graphs in onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from app.engine.entry.served_model import ServedModel, stacked
from app.engine.types.errors import EngineError, GraphError
from app.engine.types.options import Bindings, Options
from app.kernels.cpu.runtime.compiler import Compiler

COUNT = 3
HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def model_of(text: str, folder: Path, compiler: Compiler) -> tuple[ServedModel, Path]:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    return ServedModel(path, Options(autotune=False), Bindings(), kernels=compiler.cache), path


def session_of(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def mixed(path: Path, shapes: dict[str, tuple[int, ...]], rows: frozenset[str]) -> list[str]:
    """Outputs that a stack of requests has otherwise than each request alone."""
    rng, session = np.random.default_rng(5), session_of(path)
    requests = [
        {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()} for _ in range(COUNT)
    ]
    names = [o.name for o in session.get_outputs()]
    alone = [dict(zip(names, session.run(None, r))) for r in requests]
    together = dict(
        zip(names, session.run(None, {k: np.concatenate([r[k] for r in requests]) for k in shapes}))
    )
    wrong = []
    for name in names:
        parts = [a[name] for a in alone]
        expected = np.concatenate(parts) if name in rows else parts[0]
        same = name in rows or all(np.array_equal(p, parts[0]) for p in parts)
        if (
            not same
            or expected.shape != together[name].shape
            or not np.allclose(expected, together[name], rtol=1e-4, atol=1e-5)
        ):
            wrong.append(name)
    return wrong


# Body of a graph of x: float[N, 4, 6] that makes y, and the reason why requests of it are not stacked.
REFUSED = {
    "mean": (
        "y = ReduceMean <keepdims = 1> (x, axes)",
        r"ReduceMean '.*' may mix requests: it reduces axis 0",
    ),
    "softmax": ("y = Softmax <axis = 0> (x)", r"Softmax '.*' may mix requests: it works along axis 0"),
    "number of rows": (
        "s = Shape <start = 0, end = 1> (x)\nf = Cast <to = 1> (s)\ny = Div (x, f)",
        "the graph has other nodes for another batch size, from Identity 'Div y.copy' and Mul 'Div y' on",
    ),
    "product": (
        "r = Reshape (x, flat)\nt = Transpose (r)\ny = MatMul (t, r)",
        "it adds up along the requests",
    ),
    "reversed": (
        "y = Slice (x, last, first, axes, back)",
        r"Slice '.*' may mix requests: it takes a part of axis 0, which has the requests",
    ),
    "cumulated": ("y = CumSum (x, zero)", "it works along axis 0"),
    "merged": ("y = Reshape (x, columns)", r"Reshape 'Reshape y' may mix requests: it cuts across"),
    "moved": ("y = Transpose <perm = [1, 0, 2]> (x)", "output 'y' has the requests along axis 1"),
    "places of maxima": (
        "p, i = MaxPool <kernel_shape = [2]> (x)\ny = Cast <to = 1> (i)",
        r"MaxPool '.*' may mix requests: its places of maxima count through the images",
    ),
    "resized": (
        'y = Resize <mode = "linear"> (x, , scales)',
        r"Resize '.*' may mix requests: it changes the number of images",
    ),
    "random": ("r = RandomNormalLike (x)\ny = Add (x, r)", "no rule shows that it does not"),
}
CONSTANTS = (
    "<int64[1] axes = {0}, int64[2] flat = {-1, 24}, int64[1] last = {-1}, int64[1] first = {-100}, "
    "int64[1] back = {-1}, int64 zero = {0}, int64[2] columns = {6, -1}, "
    "float[3] scales = {2.0, 1.0, 1.0}>"
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_that_mixes_requests_is_named(name: str, tmp_path: Path, compiler: Compiler) -> None:
    body, reason = REFUSED[name]
    text = f"g (float[N, 4, 6] x) => (float[A, B, C] y) {CONSTANTS} {{\n{body}\n}}"
    model, _ = model_of(text.replace("[A, B, C]", ""), tmp_path, compiler)
    with pytest.raises(GraphError, match=f"requests cannot be computed together: .*{reason}"):
        model.rows_of_outputs({"x": (1, 4, 6)}, COUNT)


def test_an_input_whose_batch_is_fixed_is_named(tmp_path: Path, compiler: Compiler) -> None:
    model, _ = model_of("g (float[1, 4] x) => (float[1, 4] y) {\ny = Relu (x)\n}", tmp_path, compiler)
    with pytest.raises(GraphError, match="'x' has a fixed first axis of 1: export the model with a symbolic"):
        model.rows_of_outputs({"x": (1, 4)}, COUNT)


# (text of a node that makes y of x, shapes of x and y by rank of x); the batch is where it was, or is not.
STEPS = (
    "y = Relu (x)",
    "y = Add (x, c6)",
    "y = Mul (x, x)",
    "y = MatMul (x, square)",
    "y = Softmax <axis = -1> (x)",
    "y = Softmax <axis = 1> (x)",
    "y = Softmax <axis = 0> (x)",
    "y = LayerNormalization <axis = -1> (x, c6)",
    "y = Transpose <perm = [0, 2, 1]> (x)",
    "y = Transpose <perm = [1, 0, 2]> (x)",
    "m = ReduceMean <keepdims = 1> (x, a1)\ny = Sub (x, m)",
    "m = ReduceMax <keepdims = 1> (x, a0)\ny = Sub (x, m)",
    "m = ReduceSum <keepdims = 0> (x, a1)\nn = Unsqueeze (m, a1)\ny = Add (x, n)",
    "r = Reshape (x, rows6)\nm = MatMul (r, square)\ns = Shape (x)\ny = Reshape (m, s)",
    "r = Reshape (x, rows24)\nm = Relu (r)\ny = Reshape (m, back466)",
    "r = Reshape (x, rows6)\nm = Softmax <axis = 0> (r)\ns = Shape (x)\ny = Reshape (m, s)",
    "s = Shape <start = 0, end = 1> (x)\nf = Cast <to = 1> (s)\ny = Mul (x, f)",
    "s = Shape (x)\ne = Expand (c6, s)\ny = Add (x, e)",
    "t = Transpose <perm = [0, 2, 1]> (x)\nm = MatMul (x, t)\ny = MatMul (m, x)",
    "y = Concat <axis = 1> (x, x)",
    "y = Concat <axis = 0> (x, x)",
    "p, q = Split <axis = 1, num_outputs = 2> (x)\ny = Concat <axis = 1> (q, p)",
    "y = Slice (x, one, big, a1)",
    "y = Slice (x, one, big, a0)",
    "y = Gather <axis = 1> (x, pick)",
    "y = Gather <axis = 0> (x, pick)",
    "y = CumSum (x, i1)",
    "y = CumSum (x, i0)",
    "z = Shape <start = 0, end = 1> (x)\nf = Concat <axis = 0> (z, f46)\nh = ConstantOfShape (f)\n"
    "k = Cast <to = 1> (h)\ns = Shape (x)\ne = Expand (i0f, s)\nj = Add (x, e)\ny = Sum (j, i0f)",
)
SEEDS = 60


def random_text(seed: int) -> str:
    rng = np.random.default_rng(seed)
    lines, value = [], "x"
    for number in range(int(rng.integers(1, 5))):
        step = STEPS[rng.integers(len(STEPS))]
        names = {name: f"{name}{number}_" for name in "yzmnrstefhkjpq"} | {"x": value}
        words = step.replace("(", "( ").replace(")", " )").replace(",", " ,").split(" ")
        made = {w for line in step.split("\n") for w in line.split(" = ")[0].replace(",", " ").split()}
        lines.append(" ".join(names[w] if w in made | {"x"} else w for w in _words(words)))
        value = f"y{number}_"
    return (
        "g (float[N, 4, 6] x) => (float y) <float[6] c6 = {1, 2, 3, 4, 5, 6}, int64[1] a0 = {0}, "
        "int64[1] a1 = {1}, int64 i0 = {0}, int64 i1 = {1}, float i0f = {0.5}, int64[2] rows6 = {-1, 6}, "
        "int64[2] rows24 = {-1, 24}, int64[3] back466 = {-1, 4, 6}, int64[1] one = {1}, int64[1] big = {9}, "
        f"int64[2] pick = {{1, 0}}, int64[2] f46 = {{4, 6}}, float[6, 6] square = {{{_square()}}}> {{\n"
        + "\n".join(lines)
        + f"\ny = Identity ({value})\n}}"
    )


def _words(words: list[str]) -> list[str]:
    return [part for word in words for part in _split_lines(word)]


def _split_lines(word: str) -> list[str]:
    first, *rest = word.split("\n")
    return [first, *(p for r in rest for p in ("\n", r))]


def _square() -> str:
    return ", ".join(f"{v:.3f}" for v in np.random.default_rng(1).standard_normal(36))


def test_what_is_proved_of_random_graphs_holds(tmp_path: Path, compiler: Compiler) -> None:
    """And what a run shows to mix requests is never proved."""
    proved = refused = 0
    shapes: dict[str, tuple[int, ...]] = {"x": (2, 4, 6)}
    for seed in range(SEEDS):
        model, path = model_of(random_text(seed), tmp_path, compiler)
        try:
            rows = model.rows_of_outputs(shapes, COUNT)
        except EngineError:
            refused += 1
            continue
        assert mixed(path, shapes, rows) == [], random_text(seed)
        proved += 1
    assert proved >= SEEDS // 4
    assert refused >= SEEDS // 8


@pytest.mark.parametrize("seed", range(3))
def test_the_bits_of_a_stack_are_close_to_those_of_single_runs(
    seed: int, tmp_path: Path, compiler: Compiler
) -> None:
    text = (
        "g (float[N, 3, 8, 8] x) => (float[N, 5] y) <float[4, 3, 3, 3] w = {"
        + ", ".join(f"{v:.3f}" for v in np.random.default_rng(seed).standard_normal(108))
        + "}, float[4, 5] f = {"
        + ", ".join(f"{v:.3f}" for v in np.random.default_rng(seed).standard_normal(20))
        + "}> {\nc = Conv <pads = [1, 1, 1, 1]> (x, w)\nr = Relu (c)\ng = GlobalAveragePool (r)\n"
        "h = Flatten (g)\ny = MatMul (h, f)\n}"
    )
    model, _ = model_of(text, tmp_path, compiler)
    model._compiler = compiler
    shapes: dict[str, tuple[int, ...]] = {"x": (1, 3, 8, 8)}
    assert model.rows_of_outputs(shapes, COUNT) == {"y"}
    xs = np.random.default_rng(seed).standard_normal((COUNT, 3, 8, 8)).astype(np.float32)
    together: Any = model.program(stacked(shapes, COUNT)).run({"x": xs})["y"]
    alone = model.program(shapes)
    singles = np.concatenate([np.asarray(alone.run({"x": x[None]})["y"]) for x in xs])
    np.testing.assert_allclose(together, singles, rtol=1e-5, atol=1e-5)
