"""Libraries run sub-graphs as one step; one that is absent or fails is passed over, and that is told."""

import dataclasses
import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from app.engine.core import graph
from app.engine.core.group import SUBGRAPH
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import Registry
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.passes.partition import Partition
from app.engine.planning import session
from app.engine.planning.backend_assignment import by_subgraph
from app.engine.planning.backend_assignment.bench import Bench, without_libraries
from app.engine.report import decisions, report
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import samples
from app.engine.types.errors import UnknownBackendError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close, model_of

ROOT = Path(__file__).resolve().parents[3]
CONSTANTS = {
    "w": np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32),
}
SIMPLE = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[4, 6] x) => (float[4, 6] y) {
    a = Relu (x)
    b = Add (a, x)
    c = Mul (b, b)
    d = Sigmoid (c)
    y = Add (d, x)
}"""


def compiled(text: str, tmp_path: Path, options: Options, registry: Registry | None = None) -> Compilation:
    path = tmp_path / "model.onnx"
    constants = CONSTANTS if "w)" in text else {}
    onnx.save(ir.to_proto(model_of(text, constants)), path)
    return session.canonical(load(path), host(), options, Bindings(), registry or load_registry())


SAMPLED = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 16, 6, 6] x, float[16, 16, 3, 3] w) => (float[1, 16, 6, 6] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (c)
    p = GlobalLpPool <p = 9> (r)
    g = Mul (r, p)
    k = Conv <pads = [1, 1, 1, 1]> (g, w)
    y = Relu (k)
}"""
DET = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 16, 6, 6] x, float[16, 16, 3, 3] w) => (float[1, 16] d) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    r = Relu (c)
    d = Det (r)
}"""


def run(program: Program, compiler: Compiler, inputs: dict[str, np.ndarray]) -> dict[str, object]:
    executor = Executor(program, compiler, poison=True)
    try:
        return executor.run(inputs)
    finally:
        executor.close()


def inputs_of(compilation: Compilation) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        v.name or "": rng.standard_normal(graph.static_shape(v)).astype(np.float32)
        for v in compilation.graph.inputs
    }


def backends_of(compilation: Compilation) -> dict[str, str]:
    assert compilation.plan.partition is not None
    return {n.name or "": p.backend for n, p in compilation.plan.partition.items()}


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("text", [SIMPLE, DET], ids=["simple", "det"])
def test_a_library_computes_what_our_kernels_do(
    name: str, text: str, tmp_path: Path, compiler: Compiler
) -> None:
    pytest.importorskip(name)
    options = Options(backends=(name, "numba-cpu"), autotune=False)
    compilation = compiled(text, tmp_path, options)
    compilation, program = session.runnable(compilation, options, compiler, samples(compilation.graph.inputs))
    ours = session.planned(without_libraries(compilation), options)
    given = inputs_of(compilation)
    found, expected = run(program, compiler, given), run(ours, compiler, given)
    for output, array in expected.items():
        assert_close(np.asarray(found[output]), np.asarray(array))
    steps = [s for s in program.steps if s.is_library]
    assert [s.group.op for s in steps] == [SUBGRAPH]
    library = [b for b in program.placement.buffers if b.kind == "library"]
    assert [(b.first, b.last) for b in library] == [(0, len(program.steps) - 1)]
    assert name in library[0].reason
    rows = decisions.decisions_json(program.compilation)["decisions"]
    mine = next(r for r in rows if r["backend"] == name)
    assert set(mine["dispatch"].values()) == {"subgraph"}
    assert any(a["backend"] == "numba-cpu" and a["reason"] for a in mine["alternatives"])


def test_a_node_that_only_the_reference_runs_falls_back_and_its_conversions_are_planned(
    tmp_path: Path, compiler: Compiler
) -> None:
    options = Options(autotune=False)
    program = session.planned(compiled(SAMPLED, tmp_path, options), options)
    rows = {r["op"]: r for r in decisions.decisions_json(program.compilation)["decisions"]}
    assert rows["GlobalLpPool"]["fallback"]
    assert rows["GlobalLpPool"]["dispatch"] == {rows["GlobalLpPool"]["subject"]: "fallback"}
    refused = {a["backend"]: a["reason"] for a in rows["GlobalLpPool"]["alternatives"]}
    assert refused == {"numba-cpu": "computes norms of order 1 to 8, the node asks for 9"}
    assert "ChangeLayout" in rows, "the reference reads row-major values"
    memory = report.memory_json(program.compilation)
    converted = [b for b in memory["buffers"] if b["kind"] == "conversion"]
    assert converted
    assert [(f["op"], f["count"]) for f in decisions.fallbacks(program.compilation)] == [("GlobalLpPool", 1)]
    given = {k: np.clip(v, -1, 1) for k, v in inputs_of(program.compilation).items()}
    oracle = onnxruntime.InferenceSession(ir.to_proto(model_of(SAMPLED, CONSTANTS)).SerializeToString())
    (expected,) = oracle.run(None, given)
    assert_close(np.asarray(run(program, compiler, given)["y"]), np.asarray(expected, np.float32), 1e-4)


def test_an_unknown_backend_is_refused_with_the_names_of_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownBackendError, match=r"'tpu'.*numba-cpu, onnxruntime") as caught:
        compiled(SIMPLE, tmp_path, Options(backends=("numba-cpu", "tpu")))
    assert caught.value.pointer == "/options/backends/1"


def changed(name: str, **fields: object) -> Registry:
    """The registry with another row for a backend."""
    registry = load_registry()
    row = dataclasses.replace(registry.backends[name], **fields)  # type: ignore[arg-type]
    return dataclasses.replace(registry, backends={**registry.backends, name: row})


def test_a_backend_that_is_not_installed_is_passed_over_and_that_is_told(tmp_path: Path) -> None:
    options = Options(backends=("openvino", "numba-cpu"), autotune=False)
    absent = changed("openvino", missing=lambda: "the package 'openvino' is not installed")
    program = session.planned(compiled(SIMPLE, tmp_path, options, absent), options)
    assert set(backends_of(program.compilation).values()) == {"numba-cpu"}
    assert any("'openvino' is not installed" in n for n in program.compilation.notes)
    rows = decisions.decisions_json(program.compilation)["decisions"]
    refused = [a for r in rows for a in r["alternatives"] if a["backend"] == "openvino"]
    assert refused
    assert all("not installed" in a["reason"] for a in refused)


def refuses(model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> object:
    raise RuntimeError("this graph is too beautiful")


def breaks(model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> object:
    def run(values: Sequence[object]) -> Sequence[object]:
        raise RuntimeError("this graph is too beautiful")

    return run


@pytest.mark.parametrize("function", ["refuses", "breaks"])
def test_a_sub_graph_that_a_library_fails_on_goes_to_the_next_backend(
    function: str, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.engine.backends.libraries import onnxruntime as module

    monkeypatch.setattr(module, "prepare", globals()[function])
    options = Options(backends=("onnxruntime", "numba-cpu"), autotune=False)
    compilation = compiled(SIMPLE, tmp_path, options)
    given = inputs_of(compilation)
    compilation, program = session.runnable(compilation, options, compiler, given)
    assert set(backends_of(program.compilation).values()) == {"numba-cpu"}
    assert any("too beautiful" in n and "next backend" in n for n in program.compilation.notes)
    rows = decisions.decisions_json(program.compilation)["decisions"]
    assert any("too beautiful" in str(a["reason"]) for r in rows for a in r["alternatives"])
    run(program, compiler, given)


def shuffled(model: ir.Model, draw: random.Random) -> ir.Model:
    """The same graph, its nodes in another topological order."""
    copy = model.clone()
    nodes, placed, done = list(copy.graph), [], set(copy.graph.inputs)
    for node in nodes:
        copy.graph.remove(node)
    while nodes:
        ready = [
            n for n in nodes if all(v in done or v.producer() is None for v in n.inputs if v is not None)
        ]
        node = draw.choice(ready)
        nodes.remove(node)
        placed.append(node)
        done.update(node.outputs)
    copy.graph.extend(placed)
    return copy


def test_sub_graphs_do_not_depend_on_the_order_of_nodes_in_the_file(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2, 4, 4] x) => (float[2, 4, 4] y, float[2] e) {
        a = Relu (x)
        b = Exp (x)
        d = Det (a)
        f = Mul (a, b)
        g = Sigmoid (f)
        h = Det (g)
        i = Tanh (b)
        e = Add (d, h)
        y = Add (g, i)
    }"""
    options = Options(backends=("onnxruntime", "numba-cpu"))
    compilation = compiled(text, tmp_path, options)
    refused = {(n.name or "", "onnxruntime"): "refused" for n in compilation.graph if n.op_type == "Det"}
    compilation = dataclasses.replace(compilation, failures=refused)

    def parts(found: Compilation) -> dict[str, tuple[int, str]]:
        partition = Partition()(found).plan.partition
        assert partition is not None
        return {n.name or "": (p.index, p.backend) for n, p in partition.items()}

    expected = parts(compilation)
    assert {b for _, b in expected.values()} == {"onnxruntime", "numba-cpu"}
    for seed in range(10):
        other = shuffled(compilation.model, random.Random(seed))
        assert parts(dataclasses.replace(compilation, model=other)) == expected


EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "backends.md").read_text(), re.DOTALL)


def test_the_example_of_the_documentation_is_a_backend_once_its_package_is_installed(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EXAMPLE is not None
    assert len(EXAMPLE.group(1).splitlines()) <= 40
    (tmp_path / "stowplan_numpy_example.py").write_text(EXAMPLE.group(1))
    info = tmp_path / "stowplan_numpy_example-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stowplan-numpy-example\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stowplan.backends]\nnumpy-example = stowplan_numpy_example\n")
    monkeypatch.syspath_prepend(tmp_path)
    from app.engine.types import backend_names

    assert "numpy-example" in backend_names.names()
    options = Options(backends=("numpy-example", "numba-cpu"), autotune=False)
    compilation = compiled(SIMPLE, tmp_path, options)
    given = inputs_of(compilation)
    compilation, program = session.runnable(compilation, options, compiler, given)
    backends = [s.choice.implementation.backend for s in program.steps]
    assert backends == ["numpy-example", "numba-cpu"] or set(backends) == {"numpy-example", "numba-cpu"}
    expected = run(session.planned(without_libraries(compilation), options), compiler, given)
    assert_close(np.asarray(run(program, compiler, given)["y"]), np.asarray(expected["y"]))
    sys.modules.pop("stowplan_numpy_example", None)


def test_the_fastest_by_measurement_is_chosen_and_not_measured_again(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Compiler(compiler.cache, processes=1)
    own.folder = tmp_path / "own"
    own.folder.mkdir()
    options = Options(backends=("numba-cpu", "onnxruntime"), choose="measured", autotune=False)
    compilation = compiled(SIMPLE, tmp_path, options)
    found = session.tuned(compilation, options, own)
    assert any(n.startswith("choose:") for n in found.notes)
    assert any("onnxruntime@" in key for key in json.loads((own.folder / "timings.json").read_text()))
    monkeypatch.setattr(by_subgraph, "run_race", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(Bench, "time_library", lambda *_: pytest.fail("measured again"))
    assert session.tuned(compilation, options, own).assignment == found.assignment


@pytest.mark.parametrize(
    ("pairs", "taken"),
    [((0.95, 0.9), True), ((0.95, 0.6), False), ((0.995, 0.9), False)],
    ids=["won", "rounds lost", "won by nothing"],
)
def test_a_mixed_assignment_is_taken_when_it_is_faster_in_paired_rounds(
    pairs: tuple[float, float],
    taken: bool,
    tmp_path: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = Options(backends=("numba-cpu", "onnxruntime"), choose="measured", autotune=False)
    compilation = compiled(SIMPLE, tmp_path, options)
    every = tuple(n.name or "" for n in compilation.graph)
    mixed, alone = (("onnxruntime", every[0]),), (("onnxruntime", *every),)
    fought = []
    monkeypatch.setattr(by_subgraph, "in_pairs", lambda _bench, *both: fought.append(both) or pairs)
    bench = Bench(compilation, options, compiler, session.planned, ["onnxruntime"])
    found = by_subgraph.fastest(bench, {(): 2.0, mixed: 1.0, alone: 3.0}, ((), alone))
    assert fought == [(mixed, ())], "with the fastest single backend"
    assert found.assignment is not None
    assert set(found.assignment.values()) == ({"onnxruntime#0", ""} if taken else {""})
    assert any("in paired rounds with no library" in n for n in found.notes)


@pytest.mark.parametrize("faster", ["onnxruntime", ""])
def test_the_plan_follows_the_measured_times(
    faster: str, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Compiler(compiler.cache, processes=1)
    own.folder = tmp_path / "own"
    own.folder.mkdir()
    monkeypatch.setattr(
        by_subgraph,
        "run_race",
        lambda _bench, keys, _progress: {
            key: 1e-6 if (labels[0][0] if labels else "") == faster else 1.0 for labels, key in keys.items()
        },
    )
    options = Options(backends=("numba-cpu", "onnxruntime"), choose="measured", autotune=False)
    compilation = compiled(SIMPLE, tmp_path, options)
    program = session.planned(session.tuned(compilation, options, own), options)
    assert set(backends_of(program.compilation).values()) == {faster or "numba-cpu"}
    given = inputs_of(compilation)
    assert run(program, compiler, given)["y"] is not None
