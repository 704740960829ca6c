"""If, Loop and Scan in libraries: every byte is the executor's, and what cannot leave is named."""

import ctypes
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.export.image import rejections
from app.engine.export.library import library
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Streamed
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.export.test_library import instance, planned, pytestmark, ran  # noqa: F401
from tests.engine.passes.streams.chains import Network, Plans, stream_of

Array = np.ndarray[Any, Any]

# A loop with a choice in it that reads what is outside of both, then one whose carried values change places and
# whose other results are stacked.
LOOP = """<ir_version: 10, opset_import: ["" : 21]>
net (float[4] x, float[4] y, int64 n, bool go, float[4] bias) => (float[4] p, float[4] q, float[5, 4] s, float[4] t, float[4] u)
<int64 five = {5}, bool yes = {1}>
{
  p, q = Loop (n, go, x, y) <body: graph = first (int64 i, bool c, float[4] a, float[4] b)
    => (bool d, float[4] b_out, float[4] a_out) {
      two = Constant <value: tensor = int64 {2}> ()
      zero = Constant <value: tensor = int64 {0}> ()
      odd = Mod (i, two)
      even = Equal (odd, zero)
      sum = If (even) <
        then_branch: graph = add () => (float[4] u) { u = Add (a, bias) },
        else_branch: graph = mul () => (float[4] v) { w = Mul (a, bias)  v = Tanh (w) }>
      b_out = Identity (b)
      a_out = Identity (sum)
      most = Constant <value: tensor = int64 {5}> ()
      d = Less (i, most)
  }>
  t, u, s = Loop (five, , x, y) <body: graph = second (int64 j, bool e, float[4] g, float[4] h)
    => (bool f, float[4] h, float[4] g, float[4] k) {
      f = Identity (e)
      k = Sub (g, bias)
  }>
}"""
SCAN = """<ir_version: 10, opset_import: ["" : 21]>
net (float[3] s, float[2, 5, 3] x, float[5] y) => (float[3] last, float[3, 5] sums, float[5, 3] kept)
{
  last, sums, kept = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
      scan_output_axes = [1, 0], scan_output_directions = [0, 1],
      body: graph = body (float[3] a, float[2, 3] u, float w) => (float[3] b, float[3] c, float[3] d) {
        first = Constant <value: tensor = int64[1] {0}> ()
        m = ReduceSum <keepdims = 0> (u, first)
        v = Mul (m, w)
        b = Add (a, v)
        c = Identity (b)
        d = Tanh (a)
  }> (s, x, y)
}"""
OUTSIDE = """<ir_version: 10, opset_import: ["" : 21]>
net (float[1, 2, 3, 3] x, bool c) => (float[1, 2, 1, 1] y)
{
  y = If (c) <
    then_branch: graph = powers () => (float[1, 2, 1, 1] a) { a = GlobalLpPool <p = 9> (x) },
    else_branch: graph = most () => (float[1, 2, 1, 1] b) { b = GlobalMaxPool (x) }>
}"""


def compared(program: Program, compiler: Compiler, folder: Path, runs: list[Mapping[str, Array]]) -> None:
    """Run the executor and the library on the same inputs, in one instance each."""
    path = folder / "model.so"
    path.write_bytes(library(program, compiler, "a loop").shared.content)
    native = ctypes.CDLL(str(path))
    names = [v.name or "" for v in program.compilation.graph.inputs]
    with closing(Executor(program, compiler)) as executor, instance(native) as handle:
        for inputs in runs:
            given = {name: inputs[name] for name in names}
            expected = executor.run(given)
            found = ran(native, handle, given, expected)
            assert [a.tobytes() for a in found] == [np.asarray(a).tobytes() for a in expected.values()]


@pytest.mark.parametrize("threads", [1, 2])
def test_loops_and_branches_give_the_executors_bytes(
    threads: int, tmp_path: Path, compiler: Compiler
) -> None:
    program = planned(LOOP, tmp_path, threads=threads)
    assert not rejections(program)
    random = np.random.default_rng(0)
    runs = [
        {
            **{name: random.normal(0.4, 0.5, 4).astype(np.float32) for name in ("x", "y", "bias")},
            "n": np.array(trips),
            "go": np.array(go),
        }
        # No turn by either limit, an odd and an even number of them, and a loop that the condition ends.
        for trips, go in ((0, True), (3, False), (1, True), (4, True), (7, True), (1000, True), (-2, True))
    ]
    compared(program, compiler, tmp_path, runs)


def test_scans_along_other_axes_and_backwards_give_the_executors_bytes(
    tmp_path: Path, compiler: Compiler
) -> None:
    program = planned(SCAN, tmp_path)
    assert not rejections(program)
    random = np.random.default_rng(1)
    runs: list[Mapping[str, Array]] = [
        {
            "s": random.standard_normal(3).astype(np.float32),
            "x": random.standard_normal((2, 5, 3)).astype(np.float32),
            "y": random.standard_normal(5).astype(np.float32),
        }
        for _ in range(3)
    ]
    compared(program, compiler, tmp_path, runs)


def test_a_step_of_a_branch_that_needs_python_is_refused_with_its_path(tmp_path: Path) -> None:
    program = planned(OUTSIDE, tmp_path)
    (reason,) = rejections(program)
    assert "/then_branch/" in reason
    assert "(GlobalLpPool) runs in Python" in reason


def test_streams_are_loops_of_the_library_too(tmp_path: Path, compiler: Compiler) -> None:
    net = Network((16, 19, 17))
    net.conv(32)
    net.conv(0, 3, group=-1)
    net.conv(16, 3)
    plans = Plans(net.save(tmp_path), host())
    program = plans.planned(Streamed(plans.names, (2,) * len(plans.names)))
    assert stream_of(program).calls
    x = np.random.default_rng(0).standard_normal((1, *net.first)).astype(np.float32)
    compared(program, compiler, tmp_path, [{"x": x}, {"x": -x}])
