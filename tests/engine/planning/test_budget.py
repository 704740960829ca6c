"""Budgets, plans of least memory, and the front: on a small residual network, and on every order of its file."""

from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.buffers.placement import place
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.memory.problem import Problem, validate
from app.engine.model.load import load
from app.engine.passes.rematerialize import copy
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import CapacityError
from app.engine.types.options import Again, Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import model_of

# 14 channels leave padding in blocks; two branches of different size are joined twice.
TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 14, 24, 24] x, float[14, 14, 3, 3] w, float[28, 14, 1, 1] v, float[14, 28, 1, 1] u)
    => (float[1, 14, 24, 24] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Relu (a)
    c = Conv (b, v)
    d = Conv (c, u)
    e = Conv <pads = [1, 1, 1, 1]> (a, w)
    f = Add (d, e)
    g = Relu (f)
    h = Conv (g, v)
    i = Conv (h, u)
    j = Add (i, b)
    y = Conv <pads = [1, 1, 1, 1]> (j, w)
}"""


def saved(tmp_path: Path, shuffle: int | None = None) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"w": (14, 14, 3, 3), "v": (28, 14, 1, 1), "u": (14, 28, 1, 1)}
    proto = ir.to_proto(model_of(TEXT, {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()}))
    if shuffle is not None:
        nodes = list(proto.graph.node)
        order = np.random.default_rng(shuffle)
        made: set[str] = {"", "x", *shapes}
        del proto.graph.node[:]
        while nodes:
            ready = [n for n in nodes if set(n.input) <= made]
            node = ready[order.integers(len(ready))]
            nodes.remove(node)
            proto.graph.node.append(node)
            made.update(node.output)
    path = tmp_path / f"net{shuffle}.onnx"
    onnx.save(proto, path)
    return path


def canonical(path: Path) -> Compilation:
    return session.canonical(load(path), host(), Options(), Bindings(), load_registry())


@pytest.fixture(scope="module")
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    return canonical(saved(tmp_path_factory.mktemp("net")))


def peak(program: Program) -> int:
    return program.placement.solution.peak


def notes(program: Program) -> str:
    return "\n".join(program.compilation.notes)


def test_memory_first_takes_no_more_than_speed_first(compilation: Compilation) -> None:
    fast = session.planned(compilation, Options())
    small = session.planned(compilation, Options(prefer="memory"))
    assert peak(small) < peak(fast)
    assert "the smallest arena" in notes(small)
    assert small.placement.activations <= peak(small)


def test_a_budget_gives_up_what_it_must_and_says_so(compilation: Compilation) -> None:
    fast = session.planned(compilation, Options())
    least = peak(session.planned(compilation, Options(prefer="memory")))
    assert notes(session.planned(compilation, Options(memory_budget=peak(fast)))) == notes(fast)
    fitting = session.planned(compilation, Options(memory_budget=least))
    assert peak(fitting) <= least
    assert f"fits the budget with {fitting.compilation.concessions.describe}" in notes(fitting)
    assert f"{peak(fast)} byte would be needed without" in notes(fitting)


def test_what_cannot_fit_names_what_was_tried(compilation: Compilation) -> None:
    with pytest.raises(CapacityError, match="tried: a longer search for an order") as error:
        session.planned(compilation, Options(memory_budget=1000))
    assert error.value.needed > error.value.available == 1000


def test_no_plan_of_the_front_beats_another(compilation: Compilation) -> None:
    points = session.pareto_front(compilation, Options())
    peaks, seconds = [p.peak_bytes for p in points], [p.seconds for p in points]
    assert peaks == sorted(set(peaks))
    assert seconds == sorted(seconds, reverse=True)
    assert len(points) > 1
    assert peaks[-1] <= peak(session.planned(compilation, Options()))


def test_the_order_of_the_file_changes_nothing(tmp_path: Path, compilation: Compilation) -> None:
    found = session.planned(compilation, Options(prefer="memory"))
    for seed in range(4):
        again = session.planned(canonical(saved(tmp_path, seed)), Options(prefer="memory"))
        assert peak(again) == peak(found)
        assert [s.group.name for s in again.steps] == [s.group.name for s in found.steps]


def test_placements_with_parts_are_valid(compilation: Compilation) -> None:
    for options in (Options(), Options(prefer="memory")):
        program = session.planned(compilation, options)
        storage, solution = place(program.compilation)
        validate(Problem(storage.problem.buffers, solution.peak), solution)
        assert solution.peak <= peak(program)


# Of two images, which are not computed in strips: h waits from the first step to the last, and one cheap node makes it from what the caller holds.
WAITS = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[2, 16, 24, 24] x, float[64, 16, 1, 1] v, float[16, 64, 1, 1] u) => (float[2, 16, 24, 24] y) {
    h = Sigmoid (x)
    a = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (h)
    b = Conv (a, v)
    c = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b)
    d = Conv (c, u)
    e = Mul (d, h)
    y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (e)
}"""


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    rng = np.random.default_rng(1)
    shapes = {"v": (64, 16, 1, 1), "u": (16, 64, 1, 1)}
    weights = {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()}
    path = tmp_path_factory.mktemp("waits") / "net.onnx"
    onnx.save(ir.to_proto(model_of(WAITS, weights)), path)
    return canonical(path)


def test_a_cheap_value_that_waits_through_the_peak_is_computed_again(
    waiting: Compilation, compiler: Compiler
) -> None:
    kept = session.planned(waiting, Options())
    small = session.planned(waiting, Options(prefer="memory"))
    assert "computed again" in notes(small)
    assert peak(kept) - peak(small) > 0.9 * 2 * 16 * 24 * 24 * 4  # less a workspace
    fitting = session.planned(waiting, Options(memory_budget=peak(small)))
    assert "computed again" in notes(fitting)
    assert "us in place of" in notes(fitting)
    x = np.random.default_rng(2).standard_normal((2, 16, 24, 24), np.float32)
    results = []
    for program in (kept, small, fitting):
        with closing(Executor(program, compiler, poison=True)) as executor:
            results.append(executor.run({"x": x})["y"])
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-5)


def test_copies_serve_the_named_readers_only() -> None:
    graph = model_of(WAITS, {}).graph
    names = {n.outputs[0].name: n for n in graph}
    for out, node in names.items():
        node.name = f"make_{out}"
    assert copy(graph, Again(("make_h",), ("make_e",))) == {"make_h.again": "make_h"}
    made = [n.outputs[0].name for n in graph]
    assert made == ["h", "a", "b", "c", "d", "h.again", "e", "y"]
    assert copy(graph, Again(("make_h", "make_a"), ("make_b",))).keys() == {"make_h.again2", "make_a.again"}
    made = [n.outputs[0].name for n in graph]
    assert made == ["h.again2", "a.again", "b", "c", "d", "h.again", "e", "y"]  # nothing reads h and a now
    assert [v.name for v in names["e"].inputs if v] == ["d", "h.again"]
    assert [v.name for v in names["b"].inputs if v] == ["a.again", "v"]
    with pytest.raises(ValueError, match="there is none"):
        copy(graph, Again(("make_z",), ("make_e",)))


def residual_net(channels: int, side: int) -> ir.Model:
    """Seven convolutions, three residual sums: the example of the proposals this project answers."""
    conv = "Conv <pads = [1, 1, 1, 1]>"
    lines, last = [f"s = {conv} (x, first)", "r0 = Relu (s)"], "r0"
    for i in range(3):
        lines += [f"a{i} = {conv} ({last}, w{i})", f"b{i} = Relu (a{i})", f"c{i} = {conv} (b{i}, v{i})"]
        lines += [f"d{i} = Add (c{i}, {last})", f"r{i + 1} = Relu (d{i})"]
        last = f"r{i + 1}"
    text = "\n".join([*lines, f"y = GlobalAveragePool ({last})"])
    rng = np.random.default_rng(0)
    weights = {"first": rng.standard_normal((channels, 3, 3, 3), np.float32)}
    weights |= {
        f"{k}{i}": rng.standard_normal((channels, channels, 3, 3), np.float32) for k in "wv" for i in range(3)
    }
    given = ", ".join(f"float[{', '.join(map(str, a.shape))}] {name}" for name, a in weights.items())
    return model_of(
        f'<ir_version: 10, opset_import: ["": 21]> '
        f"agraph (float[1, 3, {side}, {side}] x, {given}) => (float[1, {channels}, 1, 1] y) {{ {text} }}",
        weights,
    )


def test_the_residual_in_place_spares_a_third(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(ir.to_proto(residual_net(16, 20)), path)
    one = 16 * 20 * 20 * 4
    shared = session.planned(canonical(path), Options(autotune=False))
    apart = session.planned(canonical(path), Options(autotune=False, inplace=False))
    assert shared.placement.activations == 2 * one
    assert apart.placement.activations == 3 * one
