"""Graphs cut and joined by the names of values, with onnxruntime on the parts beside the whole as the oracle."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.entry.derive import OPERATIONS, Source, derive
from app.engine.model import manipulation
from app.engine.model.load import read
from app.engine.report.onnx import export
from app.engine.types.errors import GraphError, InputError
from tests.engine.canonical import Array, runtime, saved

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
CHAIN = f"""{HEAD}
    g (float[n,3] x, float[n,3] z) => (float[n,3] y, float[n,1] s) {{
        a = Relu(x)
        b = Mul(a, w)
        c = Add(b, z)
        y = Tanh(c)
        axes = Constant<value_ints = [1]>()
        s = ReduceSum(b, axes)
    }}"""
W = np.array([1, 2, 3], np.float32)
UNARY, BINARY = ("Relu", "Tanh", "Neg", "Sigmoid"), ("Add", "Sub", "Mul", "Max")


def source(text: str, folder: Path, weights: dict[str, Array] | None = None) -> Source:
    folder.mkdir(parents=True, exist_ok=True)
    return Source(saved(text, folder, weights))


def chain(folder: Path) -> Source:
    return source(CHAIN, folder, {"w": W})


def written(model: ir.Model | None, path: Path) -> Path:
    assert model is not None
    export(model, path, notes=True)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    return path


def extracted(source: Source, inputs: Sequence[str], outputs: Sequence[str], path: Path) -> Path:
    request = {"inputs": inputs, "outputs": outputs}
    return written(OPERATIONS["extract"]([source], request).model, path)


def composed(first: Source, second: Source, path: Path, prefix: str = "second.", **connect: str) -> Path:
    request = {"connect": connect, "prefix": prefix}
    return written(OPERATIONS["compose"]([first, second], request).model, path)


def signature(path: Path) -> tuple[list[str], list[str]]:
    graph = onnx.load(path).graph
    return [v.name for v in graph.input], [v.name for v in graph.output]


def test_values_have_roles_types_and_their_node(tmp_path: Path) -> None:
    rows = {row.name: row for row in manipulation.values(chain(tmp_path).read())}
    assert list(rows) == ["x", "z", "w", "a", "b", "c", "y", "axes", "s"]
    assert (rows["x"].roles, rows["w"].roles, rows["b"].roles) == (("input",), ("weight",), ("internal",))
    assert (rows["y"].roles, rows["b"].operator, rows["b"].dtype) == (("output",), "Mul", "float32")
    assert (rows["b"].shape, rows["w"].shape, rows["axes"].dtype) == (("n", 3), (3,), "int64")


def test_pages_of_values_are_of_one_role(tmp_path: Path) -> None:
    request = {"operation": "values", "role": "internal", "offset": 1, "limit": 2}
    found = derive(chain(tmp_path / "uploaded").path, {}, request, {}, tmp_path)
    assert (found["total"], [v["name"] for v in found["values"]]) == (4, ["b", "c"])
    assert not (tmp_path / "model.onnx").exists()


def test_a_part_computes_what_the_whole_does(tmp_path: Path) -> None:
    model = chain(tmp_path)
    part = extracted(model, ["b"], ["s"], tmp_path / "part.onnx")
    ahead = extracted(model, [], ["b"], tmp_path / "ahead.onnx")
    assert (signature(part), signature(ahead)) == ((["b"], ["s"]), (["x"], ["b"]))
    assert [n.op_type for n in onnx.load(ahead).graph.node] == ["Relu", "Mul"]
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    whole = runtime(model.path, {"x": x, "z": x})
    np.testing.assert_array_equal(runtime(part, runtime(ahead, {"x": x}))["s"], whole["s"])


def test_a_weight_may_become_an_input(tmp_path: Path) -> None:
    part = extracted(chain(tmp_path), ["x", "w"], ["b"], tmp_path / "part.onnx")
    assert signature(part)[0] == ["x", "w"]
    assert not onnx.load(part).graph.initializer
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(runtime(part, {"x": x, "w": 2 * W})["b"], 2 * x * W)


def test_a_node_that_makes_more_than_the_cut_value_stays(tmp_path: Path) -> None:
    text = f"""{HEAD}
        g (float[4] x) => (float[2] y) {{
            a, b = Split(x)
            c = Neg(a)
            y = Add(c, b)
        }}"""
    part = extracted(source(text, tmp_path), ["a", "x"], ["y", "a"], tmp_path / "part.onnx")
    x, a = np.arange(4, dtype=np.float32), np.array([7, 8], np.float32)
    found = runtime(part, {"a": a, "x": x})
    np.testing.assert_array_equal(found["y"], x[2:] - a)
    np.testing.assert_array_equal(found["a"], a)


def test_the_same_part_has_the_same_bytes(tmp_path: Path) -> None:
    text = (
        f"{HEAD} g (float[1] x) => (float[1] y) {{ y = Sum(x, " + ", ".join(f"w{i}" for i in range(9)) + ") }"
    )
    model = source(text, tmp_path, {f"w{i}": np.full(1, i, np.float32) for i in range(9)})
    files = [extracted(model, [], ["y"], tmp_path / name) for name in ("a.onnx", "b.onnx")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [t.name for t in onnx.load(files[0]).graph.initializer] == [f"w{i}" for i in range(9)]


def test_a_body_takes_what_it_reads_along(tmp_path: Path) -> None:
    text = f"""{HEAD}
        g (bool p, float[3] x) => (float[3] y) {{
            u = Neg(x)
            v = Exp(u)
            t = If(p) <
                then_branch = one () => (float[3] r) {{ r = Add(v, w) }},
                else_branch = two () => (float[3] q) {{ q = Identity(u) }}
            >
            y = Abs(t)
        }}"""
    model = source(text, tmp_path, {"w": W})
    part = extracted(model, ["p", "u"], ["t"], tmp_path / "part.onnx")
    x = np.array([1, -2, 3], np.float32)
    for p in (np.array(True), np.array(False)):
        whole = runtime(model.path, {"p": p, "x": x})["y"]
        np.testing.assert_array_equal(np.abs(runtime(part, {"p": p, "u": -x})["t"]), whole)
    with pytest.raises(InputError, match="need 'x' besides"):
        extracted(model, ["p", "v"], ["t"], tmp_path / "part.onnx")


@pytest.mark.parametrize(
    ("inputs", "outputs", "message", "pointer"),
    [
        (["x"], ["nowhere"], "no value 'nowhere'; it has 'x', 'z'", "/outputs/0"),
        (["x", "x"], ["y"], "'x' is named twice", "/inputs/1"),
        (["x"], ["y"], "need 'z' besides", "/inputs"),
    ],
)
def test_names_that_bound_nothing_are_refused(
    tmp_path: Path, inputs: list[str], outputs: list[str], message: str, pointer: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        extracted(chain(tmp_path), inputs, outputs, tmp_path / "part.onnx")
    assert caught.value.pointer == pointer


def test_a_border_without_a_type_is_refused(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "strange": 1]>
        g (float[3] x) => (float[3] y) { a = strange.Thing(x)  y = strange.Thing(a) }"""
    model = manipulation.typed(ir.from_proto(onnx.parser.parse_model(text)))
    with pytest.raises(GraphError, match="'a' cannot be an input or output"):
        manipulation.extract(model, [], ["a"])


def test_names_that_collide_get_the_prefix_and_free_dimensions_are_unified(tmp_path: Path) -> None:
    text = f"{HEAD} g (float[m,3] y, float[n] z) => (float[m,3] a, float[n] b) {{ a = Neg(y)  b = Exp(z) }}"
    path = composed(chain(tmp_path / "1"), source(text, tmp_path / "2"), tmp_path / "whole.onnx")
    assert signature(path) == (["x", "z", "second.z"], ["s", "second.a", "second.b"])
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
              for v in (*onnx.load(path).graph.input, *onnx.load(path).graph.output)}  # fmt: skip
    assert (shapes["second.a"], shapes["second.z"], shapes["x"]) == (["n", 3], ["second.n"], ["n", 3])


def test_one_output_feeds_several_inputs_and_one_that_passes_through_keeps_its_name(tmp_path: Path) -> None:
    first = source(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Neg(x) }}", tmp_path / "1")
    second = source(f"{HEAD} g (float[3] p, float[3] q) => (float[3] p, float[3] r) {{ r = Mul(p, q) }}", tmp_path / "2")  # fmt: skip
    path = composed(first, second, tmp_path / "whole.onnx", p="y", q="y")
    assert signature(path) == (["x"], ["p", "r"])
    found = runtime(path, {"x": W})
    np.testing.assert_array_equal(found["p"], -W)
    np.testing.assert_array_equal(found["r"], W * W)


def test_the_older_opset_is_raised_and_functions_are_inlined(tmp_path: Path) -> None:
    first = source('<ir_version: 7, opset_import: ["": 11]> g (float[2,3] x) => (float[2,3] y) { y = Softmax<axis = 1>(x) }', tmp_path / "1")  # fmt: skip
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[2,3] y) => (float[2,3] z) { z = own.twice(y) }
        <domain: "own", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }"""
    path = composed(first, source(text, tmp_path / "2"), tmp_path / "whole.onnx")
    proto = onnx.load(path)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 17)]
    assert [n.op_type for n in proto.graph.node] == ["Softmax", "Add"]
    found = runtime(path, {"x": np.zeros((2, 3), np.float32)})["z"]
    np.testing.assert_allclose(found, np.full((2, 3), 2 / 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("second", "connect", "message"),
    [
        ("(float[2] y) => (float[2] r) { r = Neg(y) }", {}, r"float32\[2\].*float32\[n, 3\]"),
        ("(int64[n,3] y) => (int64[n,3] r) { r = Neg(y) }", {}, "int64"),
        ("(float[n,3] q) => (float[n,3] r) { r = Neg(q) }", {}, "say which reads which"),
        ("(float[n,3] q) => (float[n,3] r) { r = Neg(q) }", {"q": "a"}, "no output 'a'"),
        ("(float[n,3] q) => (float[n,3] r) { r = Neg(q) }", {"r": "y"}, "no input 'r'"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, second: str, connect: dict[str, str], message: str
) -> None:
    model = source(f"{HEAD} g {second}", tmp_path / "2")
    with pytest.raises(InputError, match=message):
        composed(chain(tmp_path / "1"), model, tmp_path / "whole.onnx", **connect)


def test_a_prefix_that_does_not_help_is_refused(tmp_path: Path) -> None:
    model = source(f"{HEAD} g (float[n,3] y) => (float[n,3] a) {{ a = Neg(y) }}", tmp_path / "2")
    with pytest.raises(InputError, match="another prefix"):
        composed(chain(tmp_path / "1"), model, tmp_path / "whole.onnx", prefix="")


def random_graph(seed: int) -> tuple[str, list[str]]:
    """A chain of random nodes over two inputs, each of which reads any values before; names of its values."""
    random = np.random.default_rng(seed)
    known, lines = ["x0", "x1"], []
    for number in range(int(random.integers(3, 12))):
        binary = random.random() < 0.6
        op = str(random.choice(BINARY if binary else UNARY))
        read = [str(random.choice(known)) for _ in range(1 + binary)]
        known.append(f"v{number}")
        lines.append(f"v{number} = {op}({', '.join(read)})")
    ends = [known[-1], str(random.choice(known[2:]))]
    outputs = ", ".join(f"float[2,3] {name}" for name in dict.fromkeys(ends))
    body = "\n".join(lines)
    return f"{HEAD} g (float[2,3] x0, float[2,3] x1) => ({outputs}) {{ {body} }}", known


@pytest.mark.parametrize("block", range(4))
def test_a_cut_and_its_composition_give_the_whole_back(block: int, tmp_path: Path) -> None:
    for seed in range(25 * block, 25 * block + 25):
        random = np.random.default_rng(seed)
        text, known = random_graph(seed)
        whole = source(text, tmp_path / str(seed))
        outputs = signature(whole.path)[1]
        made = [n.output[0] for n in onnx.load(whole.path).graph.node]
        place = int(random.integers(1, len(made)))
        before = set(made[:place])
        nodes = onnx.load(whole.path).graph.node[place:]
        crossing = [v for v in known if v in before and any(v in n.input for n in nodes)]
        crossing += [o for o in outputs if o in before and o not in crossing]
        later = [o for o in outputs if o not in before]
        border = crossing + [x for x in ("x0", "x1") if any(x in n.input for n in nodes)]
        inputs = {x: random.standard_normal((2, 3)).astype(np.float32) for x in ("x0", "x1")}
        expected = runtime(whole.path, inputs)
        if not crossing or not [v for v in crossing if any(v in n.input for n in nodes)]:
            continue
        first = extracted(whole, [], crossing, tmp_path / "first.onnx")
        second = extracted(whole, border, later, tmp_path / "second.onnx")
        joined = composed(Source(first), Source(second), tmp_path / "joined.onnx")
        # An open input of the second has the name of one of the first where both read it.
        twins = {n: inputs[n.removeprefix("second.")] for n in signature(joined)[0]}
        found = runtime(joined, twins)
        for name in later:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=f"{seed} {name}")


def test_models_beside_come_as_files_and_the_new_one_lies_in_the_folder(tmp_path: Path) -> None:
    first, second = chain(tmp_path / "1"), tmp_path / "second.onnx"
    text = f"{HEAD} g (float[n,3] y) => (float[n,3] r) {{ r = Mul(y, big) }}"
    model = ir.from_proto(onnx.load(saved(text, tmp_path, {"big": np.ones((3000, 1), np.float32)})))
    export(model, second, external=True)
    beside = {"1/": str(second), "1/second.onnx.data": str(tmp_path / "second.onnx.data")}
    request = {"operation": "compose", "connect": {}, "prefix": "second."}
    derive(first.path, {}, request, beside, tmp_path)
    found = read(tmp_path / "model.onnx")
    np.testing.assert_array_equal(found.graph.initializers["big"].const_value.numpy(), np.ones((3000, 1)))  # type: ignore[union-attr]
