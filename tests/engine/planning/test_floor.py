"""No model is slower than in a library that runs all of it, and no node waits for the reference evaluator."""

import dataclasses
import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.backends.libraries import onnxruntime as library
from app.engine.core.calls import SubgraphCall
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.optimize import optimize
from app.engine.entry.served_model import ServedModel
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.backend_assignment import whole_model
from app.engine.report import decisions
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import InputError, KernelError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import runtime, saved
from tests.harness import OWN
from tests.session import Session

pytestmark = pytest.mark.libraries

# Our kernels run the first and the last node, none of ours the second; a library runs all.
MIXED = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 3, 6, 6] x) => (float[1, 3, 1, 1] y) {
    r = Sigmoid (x)
    g = GlobalLpPool <p = 9> (r)
    y = Relu (g)
}"""
PLAIN = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[4, 6] x) => (float[4, 6] y) {
    a = Sigmoid (x)
    y = Mul (a, x)
}"""
APART = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[4, 6] x, float[5] z) => (float[4, 6] y, float[5] e) {
    y = Sigmoid (x)
    e = Tanh (z)
}"""
BOXES = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 9, 4] boxes, float[1, 1, 9] scores) => (int64[n, 3] kept, float[m, 4] found)
<int64[1] limit = {4}, float[1] overlap = {0.5}, int64[1] last = {-1}, int64[1] column = {2}> {
    kept = NonMaxSuppression (boxes, scores, limit, overlap)
    index = Gather <axis = 1> (kept, column)
    flat = Reshape (index, last)
    rows = Squeeze (boxes)
    found = Gather (rows, flat)
}"""
BRANCHES = """<ir_version: 10, opset_import: ["": 21]>
agraph (bool c, float[1, 3, 6, 6] x) => (float[1, 3, 1, 1] y) {
    y = If (c) <then_branch = a () => (float[1, 3, 1, 1] t) { t = GlobalLpPool <p = 9> (x) },
                else_branch = b () => (float[1, 3, 1, 1] e) { e = GlobalMaxPool (x) }>
}"""
# Strings inside, numbers at the border.
WORDS = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[3] x) => (float[3] y) {
    s = Cast <to = 8> (x)
    n = Cast <to = 1> (s)
    y = Relu (n)
}"""
LIST = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[3, 4] x, float[3, 4] z) => (float[6, 4] y) {
    r = Relu (x)
    s = SequenceConstruct (r, z)
    y = ConcatFromSequence <axis = 0> (s)
}"""


def compiled(text: str, folder: Path, options: Options) -> Compilation:
    return session.canonical(load(saved(text, folder)), host(), options, Bindings(), load_registry())


def backends(program: Program) -> list[str]:
    return [s.choice.implementation.backend for s in program.steps if s.calls]


def given(compilation: Compilation) -> dict[str, object]:
    rng = np.random.default_rng(3)
    return {
        v.name or "": np.asarray(True)
        if v.dtype is not None and v.dtype.name == "BOOL"
        else rng.uniform(-1, 1, tuple(v.shape or ())).astype(np.float32)  # type: ignore[arg-type]
        for v in compilation.graph.inputs
    }


def computed(program: Program, compiler: Compiler, inputs: dict[str, object]) -> dict[str, object]:
    executor = session.bound(program, compiler, poison=True)
    try:
        return executor.run(inputs)
    finally:
        executor.close()


@pytest.mark.parametrize(
    "text", [MIXED, BOXES, BRANCHES, WORDS, LIST], ids=["mixed", "boxes", "if", "words", "list"]
)
def test_a_node_without_a_kernel_of_ours_runs_in_onnxruntime_and_not_in_the_reference_evaluator(
    text: str, tmp_path: Path, compiler: Compiler
) -> None:
    options = Options(autotune=False)
    compilation = compiled(text, tmp_path, options)
    inputs = given(compilation)
    compilation, program = session.runnable(compilation, options, compiler, inputs)
    assert "reference" not in backends(program)
    assert not decisions.fallbacks(program.compilation)
    expected = runtime(tmp_path / "model.onnx", inputs)  # type: ignore[arg-type]
    for name, array in computed(program, compiler, inputs).items():
        np.testing.assert_allclose(np.asarray(array), expected[name], rtol=1e-5, atol=1e-5)


# A library runs the first node; the sizes of the second are drawn, and few sizes fit.
SIZES = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 3, 6, 6] x, int64[2] sizes) => (float[n, m] y) {
    g = GlobalLpPool <p = 9> (x)
    y = Reshape (g, sizes)
}"""


def test_a_trial_on_sizes_that_fit_nothing_keeps_the_program(tmp_path: Path, compiler: Compiler) -> None:
    options = Options(autotune=False)
    compilation = compiled(SIZES, tmp_path, options)
    inputs = {"x": np.ones((1, 3, 6, 6), np.float32), "sizes": np.array([5, 7])}
    found, program = session.runnable(compilation, options, compiler, inputs)
    assert found is compilation
    assert program.has_library
    fitting = {**inputs, "sizes": np.array([1, 3])}
    assert np.shape(computed(program, compiler, fitting)["y"]) == (1, 3)


def test_a_trial_hides_no_other_failure_of_a_kernel(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(autotune=False)
    compilation = compiled(SIZES, tmp_path, options)
    inputs = {"x": np.ones((1, 3, 6, 6), np.float32), "sizes": np.array([1, 3])}

    def broken(*_: object) -> None:
        raise KernelError("kernel 'copy' does not compile")

    monkeypatch.setattr(Executor, "run", broken)
    with pytest.raises(KernelError, match="does not compile"):
        session.runnable(compilation, options, compiler, inputs)


def test_our_kernels_run_what_they_can_where_nothing_is_measured(tmp_path: Path) -> None:
    options = Options(autotune=False)
    program = session.planned(compiled(MIXED, tmp_path, options), options)
    assert backends(program) == ["numba-cpu", "onnxruntime", "numba-cpu"]
    own = session.planned(compiled(MIXED, tmp_path, dataclasses.replace(options, backends=OWN)), options)
    assert backends(own) == ["numba-cpu", "reference", "numba-cpu"]


def test_a_target_that_is_another_machine_keeps_the_backends_of_its_description() -> None:
    assert host().backends == ("numba-cpu", "onnxruntime", "reference")
    assert all("onnxruntime" not in t.backends for t in PRESETS)


def racing(ratio: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Times told for whole models in place of measured ones; what is raced."""
    raced: list[str] = []

    def race(_bench: object, _own: Program, whole: Program, _inputs: object) -> tuple[float, float]:
        raced.append(whole.steps[0].choice.implementation.backend)
        return ratio, 1e-6

    monkeypatch.setattr(whole_model, "race", race)
    return raced


@pytest.fixture
def own(compiler: Compiler, tmp_path: Path) -> Compiler:
    """A compiler with a timings table of its own."""
    fresh = Compiler(compiler.cache, processes=1)
    fresh.folder = tmp_path / "own"
    fresh.folder.mkdir()
    return fresh


@pytest.mark.parametrize(("ratio", "taken"), [(0.9, True), (0.98, False), (1.5, False)])
@pytest.mark.parametrize("text", [MIXED, PLAIN, APART], ids=["mixed", "plain", "apart"])
def test_a_library_that_is_faster_on_the_whole_model_runs_all_of_it(
    text: str,
    ratio: float,
    taken: bool,
    tmp_path: Path,
    compiler: Compiler,
    own: Compiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raced = racing(ratio, monkeypatch)
    options = Options()
    compilation = compiled(text, tmp_path, options)
    found = session.tuned(compilation, options, own)
    assert raced == ["onnxruntime"]
    inputs = given(compilation)
    found, program = session.runnable(found, options, own, inputs)
    assert (backends(program) == ["onnxruntime"]) == taken
    assert ("onnxruntime on the whole model is taken" in " ".join(found.notes)) == taken
    again = session.tuned(compilation, options, own)
    assert raced == ["onnxruntime"], "what was measured is not measured again"
    assert (again.assignment, again.notes) == (found.assignment, found.notes)
    expected = runtime(tmp_path / "model.onnx", inputs)  # type: ignore[arg-type]
    for name, array in computed(program, compiler, inputs).items():
        np.testing.assert_allclose(np.asarray(array), expected[name], rtol=1e-5, atol=1e-5)


def test_what_lies_between_nodes_of_a_library_goes_to_it_too_where_that_is_faster(
    tmp_path: Path, compiler: Compiler, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        whole_model,
        "race",
        lambda _bench, _own, other, _inputs: (0.9 if len(other.steps) == 1 else 0.8, 1e-6),
    )
    second = "s = Sigmoid (g)\n    t = GlobalLpPool <p = 9> (s)\n    y = Relu (t)"
    text = MIXED.replace("y = Relu (g)", second)
    options = Options()
    compilation = session.tuned(compiled(text, tmp_path, options), options, own)
    program = session.planned(compilation, options)
    parts = {s.choice.implementation.backend: [n.op_type for n in s.group.nodes] for s in program.steps}
    assert parts["onnxruntime"] == ["GlobalLpPool", "Sigmoid", "GlobalLpPool"]
    assert backends(program).count("onnxruntime") == 1
    assert set(backends(program)) == {"numba-cpu", "onnxruntime"}
    inputs = given(compilation)
    expected = runtime(tmp_path / "model.onnx", inputs)  # type: ignore[arg-type]
    found = computed(program, compiler, inputs)["y"]
    np.testing.assert_allclose(np.asarray(found), expected["y"], rtol=1e-5, atol=1e-5)


def test_a_whole_model_goes_to_the_library_as_the_file_has_it(
    tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    racing(0.5, monkeypatch)
    text = PLAIN.replace("a = Sigmoid (x)", "i = Identity (x)\n    a = Sigmoid (i)")
    options = Options()
    compilation = session.tuned(compiled(text, tmp_path, options), options, own)
    (call,) = session.planned(compilation, options).steps[0].calls
    assert isinstance(call, SubgraphCall)
    sent = onnx.load_model_from_string(call.model())
    assert [n.op_type for n in sent.graph.node] == ["Identity", "Sigmoid", "Mul"]


def test_a_shape_that_the_file_states_wrongly_holds_no_library_back(
    tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Converters of tree models state one row for outputs of as many rows as there are."""
    racing(0.5, monkeypatch)
    text = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
    agraph (float[n, 6] x) => (float[1, 6] y) {
        y = ai.onnx.ml.Scaler <offset = [0.0], scale = [2.0]> (x)
    }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    bindings = Bindings(shapes={"x": (4, 6)})
    compilation = session.canonical(load(path), host(), Options(), bindings, load_registry())
    inputs = given(compilation)
    program = session.planned(session.tuned(compilation, Options(), own), Options())
    assert backends(program) == ["onnxruntime"]
    with closing(Executor(program, own)) as executor:
        executor.feed(inputs)
        executor.step_seconds()  # results in memory of ours
        y = np.asarray(executor.run(inputs)["y"])
    np.testing.assert_allclose(y, 2 * np.asarray(inputs["x"]), rtol=1e-6)


@pytest.mark.parametrize(
    "changed",
    [
        {"choose": "first"},
        {"autotune": False},
        {"prefer": "memory"},
        {"backends": OWN},
        {"semantics": "mxnet-1.9"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_nothing_races_where_it_is_not_asked_for(
    changed: dict[str, object], tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    raced = racing(0.5, monkeypatch)
    options = dataclasses.replace(Options(), **changed)  # type: ignore[arg-type]
    session.tuned(compiled(PLAIN, tmp_path, options), options, own)
    assert not raced


def wrong(model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> object:
    """A library that is fast and wrong."""
    return lambda values: [np.zeros((4, 6), np.float32)]


def failing(model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> object:
    """A library that cannot."""
    raise RuntimeError("this graph is too beautiful")


@pytest.mark.parametrize(
    ("prepare", "told"), [(wrong, "differs from the original"), (failing, "too beautiful")]
)
def test_a_library_that_computes_something_else_or_nothing_is_not_given_the_model_and_that_is_told(
    prepare: Callable[..., object],
    told: str,
    tmp_path: Path,
    own: Compiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "prepare", prepare)
    options = Options()
    found = session.tuned(compiled(PLAIN, tmp_path, options), options, own)
    assert not found.assignment
    assert any("onnxruntime on the whole model is refused" in n and told in n for n in found.notes)


def test_what_a_library_fails_on_inside_a_body_goes_to_the_next_backend(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "prepare", failing)
    options = Options(autotune=False)
    compilation = compiled(BRANCHES, tmp_path, options)
    inputs = given(compilation)
    compilation, program = session.runnable(compilation, options, compiler, inputs)
    assert any("too beautiful" in n and "next backend" in n for n in compilation.notes)
    expected = runtime(tmp_path / "model.onnx", inputs)  # type: ignore[arg-type]
    found = computed(program, compiler, inputs)
    np.testing.assert_allclose(np.asarray(found["y"]), expected["y"], rtol=1e-5, atol=1e-5)


def test_a_library_is_not_raced_on_8_bit_products_that_saturate(
    tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    raced = racing(0.5, monkeypatch)
    monkeypatch.setattr(whole_model, "rejection", lambda graph, machine: "8-bit products saturate")
    options = Options()
    found = session.tuned(compiled(PLAIN, tmp_path, options), options, own)
    assert not raced
    assert any("8-bit products saturate" in n for n in found.notes)


def test_a_job_gives_up_a_whole_library_whose_outputs_are_not_the_originals(
    tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    racing(0.5, monkeypatch)
    monkeypatch.setattr(library, "prepare", wrong)
    path = saved(PLAIN, tmp_path)
    summary = optimize(path, host(), Options(benchmark_seconds=0.0), Bindings(), tmp_path, kernels=own.folder)
    assert set(summary["backends"]) == {"numba-cpu"}
    assert all(row["ok"] for row in summary["verification"]["outputs"])
    assert any("given up" in n for n in summary["notes"])
    options = Options()
    again = session.tuned(compiled(PLAIN, tmp_path, options), options, Compiler(own.folder, processes=1))
    assert not again.assignment, "what served the wrong answer is remembered"


def test_the_report_says_which_nodes_a_library_runs_and_why(tmp_path: Path, own: Compiler) -> None:
    path = saved(MIXED, tmp_path)
    options = Options(benchmark_seconds=0.0, autotune=False)
    summary = optimize(path, host(), options, Bindings(), tmp_path, kernels=own.folder)
    assert summary["libraries"] == [
        {
            "backend": "onnxruntime",
            "op": "GlobalLpPool",
            "reason": "numba-cpu: reduce.GlobalLpPool: computes norms of order 1 to 8, the node asks for 9",
            "count": 1,
        }
    ]
    assert "computes norms of order 1 to 8, the node asks for 9" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(("ratio", "taken"), [(0.5, True), (2.0, False)])
def test_a_served_model_runs_what_libraries_run_in_every_shape(
    ratio: float, taken: bool, tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    racing(ratio, monkeypatch)
    text = MIXED.replace("[1, 3, 6, 6]", "[n, 3, 6, 6]").replace("[1, 3, 1, 1]", "[n, 3, 1, 1]")
    path = saved(text, tmp_path)
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 3, 6, 6)}
    model = ServedModel(path, Options(), Bindings(shapes=shapes), kernels=own.cache)
    model._compiler = own
    for n in (1, 2):
        inputs = {k: rng.uniform(-1, 1, (n, *s[1:])).astype(np.float32) for k, s in shapes.items()}
        program = model.program({k: a.shape for k, a in inputs.items()})
        assert (backends(program.program) == ["onnxruntime"]) == taken
        assert "reference" not in backends(program.program)
        program.feed(inputs)
        program.step()
        expected = runtime(path, inputs)["y"]
        np.testing.assert_allclose(program.peek()["y"], expected, rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]
        program.close()


@pytest.mark.parametrize("size", [(4, 6), (400, 600)], ids=["small", "large"])
def test_a_program_that_a_library_runs_whole_checks_and_keeps_its_inputs_and_outputs(
    size: tuple[int, int], tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    racing(0.5, monkeypatch)
    options = Options()
    text = PLAIN.replace("4, 6", f"{size[0]}, {size[1]}")
    compilation = session.tuned(compiled(text, tmp_path, options), options, own)
    executor = session.bound(session.planned(compilation, options), own)
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    first = executor.run({"x": x})["y"]
    kept, before = np.array(first), x.copy()
    second = executor.run({"x": x + 1})["y"]
    np.testing.assert_array_equal(first, kept, "an answer is the caller's own")
    np.testing.assert_array_equal(x, before)
    assert not np.array_equal(np.asarray(second), kept)
    for bad in ({"x": x[:1]}, {"x": x.astype(np.float64)}, {"z": x}, {}):
        with pytest.raises(InputError):
            executor.run(bad)
    executor.close()


def test_a_library_gives_its_memory_back_when_its_race_is_over(
    tmp_path: Path, own: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[object]] = []
    usual = library.prepare

    def prepare(model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> object:
        made = usual(model, inputs, outputs, threads)
        held.append(weakref.ref(made))
        return made

    monkeypatch.setattr(library, "prepare", prepare)
    options = Options()
    compilation = compiled(PLAIN.replace("4, 6", "400, 600"), tmp_path, options)
    gc.disable()
    try:
        session.tuned(compilation, options, own)
        alive = [ref() is not None for ref in held]
    finally:
        gc.enable()
    assert alive
    assert not any(alive)


def test_a_model_of_strings_runs_in_process_where_no_strings_are_drawn(tmp_path: Path, own: Compiler) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (string[2] a, string[2] b) => (string[2] y) { y = StringConcat (a, b) }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    with closing(Session(path, own)) as running:
        (y,) = running.run({"a": np.array(["x", "y"]), "b": np.array(["1", "2"])}).values()
    assert list(np.asarray(y)) == ["x1", "y2"]


def test_a_reduction_of_no_elements_is_not_given_to_onnxruntime(tmp_path: Path):
    """The maximum of no truth values is False; onnxruntime's kernel leaves what its memory held."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (bool[2, 0, 4] x) => (bool[2, 1, 4] y) <int64[1] axes = {1}> { y = ReduceMax (x, axes) }"""
    options = Options(autotune=False, backends=("onnxruntime", "reference"))
    program = session.planned(compiled(text, tmp_path, options), options)
    assert not program.has_library
    with closing(Executor(program, Compiler(tmp_path), poison=True)) as executor:
        assert not executor.run({"x": np.zeros((2, 0, 4), bool)})["y"].any()
