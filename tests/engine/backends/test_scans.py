"""Loop and Scan in all their forms, If, Loop and Scan in one another: in poisoned memory, against onnxruntime.

ONNX's reference evaluator has no axes and directions of Scan, and joins what Loop stacks.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from app.engine.core.calls import BodyCall
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import GraphError
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.backends.random_bodies import Writer, random_inputs
from tests.engine.backends.test_branches import implementations, of_text
from tests.session import Session

# Two states of which one changes nothing, two inputs and two outputs, each along an axis and a direction.
FORMS = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (float[3] k, float[3] same, float[{p}] p, float[{q}] q, float[3, 3] w)
        => (float[3] last, float[3] kept, float[{u}] u, float[{v}] v) {{
        last, kept, u, v = Scan (k, same, p, q) <
            num_scan_inputs = 2, scan_input_axes = [{axes[0]}, {axes[1]}],
            scan_output_axes = [{axes[2]}, {axes[3]}],
            scan_input_directions = [{flags[0]}, {flags[1]}], scan_output_directions = [{flags[2]}, {flags[3]}],
            body = turn (float[3] a, float[3] c, float[3] e, float[2, 3] f)
                => (float[3] next, float[3] unchanged, float[3] r, float[2, 3] s) {{
                moved = MatMul (a, w)
                mixed = Add (moved, e)
                next = Tanh (mixed)
                unchanged = Identity (c)
                r = Mul (next, c)
                s = Add (f, next)
            }}
        >
    }}
"""


def extents(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    """The shape of elements stacked along an axis."""
    dims = list(shape)
    dims.insert(axis % (len(shape) + 1), length)
    return tuple(dims)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("axes", "flags"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0)),
        ((1, 2, 1, 1), (0, 0, 0, 0)),
        ((-1, -2, -1, -3), (1, 0, 0, 1)),
        ((0, 1, 0, 2), (0, 1, 1, 1)),
    ],
)
def test_scan_runs_compiled_along_every_axis_and_direction(
    tmp_path: Path, compiler: Compiler, axes: tuple[int, ...], flags: tuple[int, ...], threads: int
) -> None:
    shapes = [extents(s, a, 5) for s, a in zip(((3,), (2, 3), (3,), (2, 3)), axes, strict=True)]
    text = {n: ", ".join(map(str, s)) for n, s in zip("pquv", shapes, strict=True)}
    path, _ = of_text(FORMS.format(axes=axes, flags=flags, **text), tmp_path)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in zip(("k", "same", "p", "q", "w"), ((3,), (3,), *shapes[:2], (3, 3)), strict=True)
    }
    session = Session(path, compiler, options=Options(threads=threads), poison=True)
    assert implementations(session.program)["Scan"] == "scan.body"
    (scan,) = (s.group.anchor for s in session.program.steps if s.group.op == "Scan")
    assert len(scan.inputs) == 3  # what is handed on unchanged is no state any more
    found = session.run(inputs)
    expected = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    for name, array in zip(("last", "kept", "u", "v"), expected, strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    session.close()


def test_states_that_change_places_without_a_copy(tmp_path: Path, compiler: Compiler) -> None:
    """What onnxruntime gives here is wrong: the expected values are those of the specification."""
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        agraph (float[3] k, float[3] j, float[5, 3] x) => (float[3] a1, float[3] b1, float[5, 3] y, float[5, 3] z) {
            a1, b1, y, z = Scan (k, j, x) <num_scan_inputs = 1,
                body = turn (float[3] a, float[3] b, float[3] e) => (float[3] b, float[3] a, float[3] e, float[3] a) {}
            >
        }
    """
    path, _ = of_text(text, tmp_path)
    session = Session(path, compiler, poison=True)
    assert implementations(session.program)["Scan"] == "scan.body"
    rng = np.random.default_rng(0)
    k, j, x = (rng.standard_normal(s).astype(np.float32) for s in ((3,), (3,), (5, 3)))
    found = session.run({"k": k, "j": j, "x": x})
    np.testing.assert_array_equal(found["a1"], j)
    np.testing.assert_array_equal(found["b1"], k)
    np.testing.assert_array_equal(found["y"], x)
    np.testing.assert_array_equal(found["z"], np.stack([k, j, k, j, k]))
    session.close()


def test_scan_of_no_turn_gives_the_first_states_and_empty_stacks(tmp_path: Path, compiler: Compiler) -> None:
    text = FORMS.format(axes=(0, 1, 0, 1), flags=(0,) * 4, p="0, 3", q="2, 0, 3", u="0, 3", v="2, 0, 3")
    path, _ = of_text(text, tmp_path)
    session = Session(path, compiler, poison=True)
    ones = np.ones(3, np.float32)
    p, q, w = (np.zeros(s, np.float32) for s in ((0, 3), (2, 0, 3), (3, 3)))
    found = session.run({"k": ones, "same": 2 * ones, "p": p, "q": q, "w": w})
    np.testing.assert_array_equal(found["last"], ones)
    np.testing.assert_array_equal(found["kept"], 2 * ones)
    assert found["u"].shape == (0, 3)
    assert found["v"].shape == (2, 0, 3)
    session.close()


BATCHED = """
    <ir_version: 3, opset_import: ["": 8]>
    agraph (int64[2] lengths, float[2, 2] first, float[2, 3, 2] x) => (float[2, 2] y, float[2, 3, 2] z) {
        y, stacked = Scan (LENGTHS, first, x) <num_scan_inputs = 1, directions = [1],
            body = turn (float[2] s, float[2] e) => (float[2] next, float[2] o) {
                next = Add (s, e)
                o = Identity (next)
            }
        >
        z = Neg (stacked)
    }
"""


@pytest.mark.parametrize("lengths", ["lengths", '""'])
def test_scan_of_opset_8_keeps_its_batch_axis(tmp_path: Path, compiler: Compiler, lengths: str) -> None:
    path, proto = of_text(BATCHED.replace("LENGTHS", lengths), tmp_path)
    if lengths != "lengths":
        del proto.graph.input[0]
        onnx.save(proto, path)
    rng = np.random.default_rng(0)
    inputs = {
        "first": rng.standard_normal((2, 2)).astype(np.float32),
        "x": rng.standard_normal((2, 3, 2)).astype(np.float32),
        **({"lengths": np.array([2, 3])} if lengths == "lengths" else {}),
    }
    session = Session(path, compiler, poison=True)
    found = session.run(inputs)
    for name, array in zip("yz", onnxruntime.InferenceSession(str(path)).run(None, inputs), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    session.close()


LOOP = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (int64 n, bool c, float[2, 3] x, float most) => (LAST float[?, 2, 3] all) {
        trips = Constant <value = int64 {5}> ()
        start = Constant <value = bool {1}> ()
        NAMES = Loop (INPUTS) <
            body = turn (int64 i, bool go CARRIED) => (bool more RETURNED, float[2, 3] s) {
                step = Cast <to = 1> (i)
                s = Add (VALUE, step)
                size = ReduceMax <keepdims = 0> (s)
                BODY
                more = ENDS
            }
        >
    }
"""


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("ends", ["Less (size, most)", "Identity (go)", "Identity (start)"])
@pytest.mark.parametrize("condition", ["c", '""', "start"])
@pytest.mark.parametrize("trips", ["n", '""', "trips"])
def test_a_loop_may_leave_out_its_condition_and_its_trip_count(
    tmp_path: Path, compiler: Compiler, trips: str, condition: str, ends: str, state: bool
) -> None:
    if trips == '""' and "Less" not in ends:
        pytest.skip("such a loop does not end")
    words = {
        "LAST": "float[2, 3] last," if state else "",
        "NAMES": "last, all" if state else "all",
        "INPUTS": f"{trips}, {condition}{', x' if state else ''}",
        "CARRIED": ", float[2, 3] a" if state else "",
        "RETURNED": ", float[2, 3] b" if state else "",
        "VALUE": "a" if state else "x",
        "BODY": "b = Tanh (s)" if state else "",
        "ENDS": ends,
    }
    text = LOOP
    for word, said in words.items():
        text = text.replace(word, said)
    path, proto = of_text(text, tmp_path)
    session = Session(path, compiler, poison=True)
    assert implementations(session.program)["Loop"] == "loop.body"
    peer = onnxruntime.InferenceSession(str(path))
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    for n, c in ((3, True), (0, True), (4, False)):
        inputs = {"n": np.array(n), "c": np.array(c), "x": x, "most": np.array(2.5, np.float32)}
        found = session.run(inputs)
        for output, array in zip(proto.graph.output, peer.run(None, inputs), strict=True):
            np.testing.assert_allclose(found[output.name], array, rtol=1e-4, atol=1e-5)
    session.close()


def test_a_trip_count_that_no_condition_cuts_short_gives_stacks_of_known_length(
    tmp_path: Path, compiler: Compiler
) -> None:
    text = LOOP.replace("LAST", "").replace("NAMES", "all").replace("INPUTS", 'trips, ""')
    text = text.replace("CARRIED", "").replace("RETURNED", "").replace("VALUE", "x").replace("BODY", "")
    path, _ = of_text(text.replace("ENDS", "Identity (go)"), tmp_path)
    session = Session(path, compiler)
    assert session.program.placement.unplanned == ()
    session.close()


@pytest.mark.parametrize("kind", ["If", "Loop", "Scan"])
def test_what_follows_control_flow_is_no_part_of_its_step(
    tmp_path: Path, compiler: Compiler, kind: str
) -> None:
    node = {
        "If": """r = If (c) <then_branch = a () => (float[4, 3] p) { p = Identity (x) },
                 else_branch = b () => (float[4, 3] q) { q = Tanh (x) }>""",
        "Loop": """r = Loop (n, c, x) <body = turn (int64 i, bool go, float[4, 3] a)
                 => (bool more, float[4, 3] b) { b = Tanh (a) more = Identity (go) }>""",
        "Scan": """r = Scan (x) <num_scan_inputs = 1, body = turn (float[3] e) => (float[3] o) { o = Tanh (e) }>""",
    }[kind]
    head = (
        '<ir_version: 10, opset_import: ["": 21]> agraph (int64 n, bool c, float[4, 3] x) => (float[4, 3] y)'
    )
    path, _ = of_text(f"{head} {{ {node} y = Neg (r) }}", tmp_path)
    session = Session(path, compiler, poison=True)
    rng = np.random.default_rng(0)
    inputs = {"n": np.array(2), "c": np.array(True), "x": rng.standard_normal((4, 3)).astype(np.float32)}
    (expected,) = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    np.testing.assert_allclose(session.run(inputs)["y"], expected, rtol=1e-5, atol=1e-6)
    session.close()


def test_what_a_loop_hands_on_unchanged_and_returns_twice(tmp_path: Path, compiler: Compiler) -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        agraph (int64 n, float[3] k) => (float[3] last, float[?, 3] all) {
            last, all = Loop (n, "", k) <
                body = turn (int64 i, bool go, float[3] a) => (bool go, float[3] a, float[3] a) {}
            >
        }
    """
    path, _ = of_text(text, tmp_path)
    session = Session(path, compiler, poison=True)
    k = np.arange(3, dtype=np.float32)
    found = session.run({"n": np.array(2), "k": k})
    np.testing.assert_array_equal(found["last"], k)
    np.testing.assert_array_equal(found["all"], [k, k])
    session.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_control_flow_gives_what_onnxruntime_gives(
    tmp_path: Path, compiler: Compiler, seed: int
) -> None:
    path, proto = of_text(Writer(seed).model(), tmp_path)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(str(path), settings)
    session = Session(path, compiler, poison=True)  # runs call by call; without poison it is one sequence
    whole = Executor(session.program, compiler)
    for inputs in random_inputs(seed):
        found, same = session.run(inputs), whole.run(inputs)
        for output, array in zip(proto.graph.output, peer.run(None, inputs), strict=True):
            np.testing.assert_allclose(found[output.name], array, rtol=1e-3, atol=1e-4)
            np.testing.assert_array_equal(same[output.name], found[output.name])
    session.close()
    whole.close()


def test_steps_of_bodies_are_timed_in_all_their_turns(tmp_path: Path, compiler: Compiler) -> None:
    """Without a change of the outputs; those of branches that are not chosen take no time."""
    path, _ = of_text(Writer(1).model(), tmp_path)
    session = Session(path, compiler)
    executor = Executor(session.program, compiler)
    compiled = [s for s in session.program.steps if any(isinstance(c, BodyCall) for c in s.calls)]
    assert compiled
    for inputs in random_inputs(1):
        expected = executor.run(inputs)
        assert all(seconds >= 0 for seconds in executor.step_seconds())
        inner = executor.body_seconds()
        assert {path.split("/")[0] for path in inner} >= {s.group.name for s in compiled}
        assert min(inner.values()) >= 0
        for name, array in executor.fetch().items():
            np.testing.assert_array_equal(array, expected[name])
    assert max(inner.values()) > 0
    session.close()
    executor.close()


def test_a_body_that_does_not_fit_within_a_body_is_the_models_fault(
    tmp_path: Path, compiler: Compiler
) -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        agraph (bool c, int64 n, float[3] x) => (float[3] y) {
            y = If (c) <
                then_branch = a () => (float[3] p) {
                    q = If (c) <then_branch = d () => (float[3] r) { r = Softmax (x) },
                        else_branch = e () => (int64 t) { t = Identity (n) }>
                    p = Softmax (q)
                },
                else_branch = b () => (float[3] s) { s = Identity (x) }
            >
        }
    """
    path, _ = of_text(text, tmp_path)
    with pytest.raises(GraphError, match="mismatch between branches"):
        Session(path, compiler)


COUNTED = """
    <ir_version: 10, opset_import: ["": 21]>
    agraph (float[2, 3] x, int64 free) => (float[2, 3] last, float[?, 2, 3] all) {
        trips = Constant <value = int64 {9223372036854775807}> ()
        start = Constant <value = bool {1}> ()
        first = Constant <value = int32 {FROM}> ()
        last, k, all = Loop (trips, start, x, first) <
            body = turn (int64 i, bool go, float[2, 3] a, int32 count)
                => (bool more, float[2, 3] b, int32 next, float[2, 3] s) {
                two = Constant <value = int32 {2}> ()
                end = Constant <value = float {7}> ()
                b = Softmax (a)
                s = Identity (b)
                next = Add (count, two)
                wide = Cast <to = 1> (next)
                more = Less (wide, end)
            }
        >
    }
"""


@pytest.mark.parametrize(("start", "turns"), [(0, 4), (-4, 6), (100, 1)])
def test_a_condition_of_counters_gives_a_known_number_of_turns(
    tmp_path: Path, compiler: Compiler, start: int, turns: int
) -> None:
    path, _ = of_text(COUNTED.replace("FROM", str(start)), tmp_path)
    session = Session(path, compiler, poison=True)
    assert session.program.placement.unplanned == ()
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    inputs = {"x": x, "free": np.array(0)}
    found = session.run(inputs)
    assert found["all"].shape == (turns, 2, 3)
    for name, array in zip(
        ("last", "all"), onnxruntime.InferenceSession(str(path)).run(None, inputs), strict=True
    ):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    session.close()
