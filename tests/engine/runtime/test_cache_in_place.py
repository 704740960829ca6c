"""A cache of keys and values that has its final length is written where it was fed, and never copied again."""

from pathlib import Path

import numpy as np
import onnx

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import Array, runtime, saved

HEADS, GROUPS, WIDTH, LONGEST = 4, 2, 32, 256


def decoder(folder: Path) -> tuple[Path, dict[str, Array]]:
    cache = f"float[1,{GROUPS},{LONGEST},{WIDTH}]"
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[1,1,{(HEADS + 2 * GROUPS) * WIDTH}] x, {cache} pk, {cache} pv, int32[1] last)
        => (float[1,1,{HEADS * WIDTH}] y, {cache} ck, {cache} cv) {{
        h = Tanh(x)
        a, ck, cv = com.microsoft.GroupQueryAttention<num_heads = {HEADS}, kv_num_heads = {GROUPS}, do_rotary = 1>(
            h, "", "", pk, pv, last, total, cos, sin)
        y = Relu(a)
    }}"""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 6, (LONGEST, WIDTH // 2)).astype(np.float32)
    fixed = {"total": np.array(100, np.int32), "cos": np.cos(angles), "sin": np.sin(angles)}
    path = saved(text, folder, fixed)
    shape = (1, GROUPS, LONGEST, WIDTH)
    inputs = {n: rng.standard_normal(shape).astype(np.float32) for n in ("pk", "pv")}
    x = rng.standard_normal((1, 1, (HEADS + 2 * GROUPS) * WIDTH)).astype(np.float32)
    return path, {"x": x, **inputs, "last": np.array([99], np.int32)}


def test_decoding_writes_one_row_of_a_cache_and_copies_none(tmp_path: Path, compiler: Compiler) -> None:
    path, inputs = decoder(tmp_path)
    assert onnx.load(path).graph.node[1].op_type == "GroupQueryAttention"
    options = Options(autotune=False, backends=("numba-cpu",))
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    program = session.planned(compilation, options)
    places = {v.name: at for v, at in program.placement.values.items()}
    for past, present in (("pk", "ck"), ("pv", "cv")):
        assert places[present].root is places[past].root
        assert (places[present].space, places[present].offset) == ("input", places[past].offset)
    for poison in (False, True):
        executor = Executor(program, compiler, poison=poison)
        fed = dict(inputs)
        for token in range(3):
            fed |= {"x": inputs["x"] + np.float32(token), "last": np.array([99 - 2 + token], np.int32)}
            expected = runtime(path, {n: np.array(a) for n, a in fed.items()})
            executor.feed(fed)
            executor.step()
            executor.step()  # a second time changes nothing
            found = {n: np.asarray(a) for n, a in executor.peek().items()}
            end = 99 - 2 + token + 1
            np.testing.assert_allclose(found["y"], expected["y"], rtol=0, atol=2e-6)
            for name in ("ck", "cv"):
                np.testing.assert_allclose(
                    found[name][:, :, :end], expected[name][:, :, :end], rtol=0, atol=2e-6
                )
            assert np.may_share_memory(found["ck"], np.asarray(executor.peek()["ck"]))
            fed |= {"pk": found["ck"], "pv": found["cv"]}
        executor.close()


def test_an_input_that_something_else_reads_later_is_not_written(tmp_path: Path) -> None:
    path, _ = decoder(tmp_path)
    model = onnx.load(path)
    model.graph.node.append(onnx.parser.parse_node("z = Add(pk, ck)"))
    model.graph.output.append(onnx.ValueInfoProto(name="z", type=model.graph.output[1].type))
    onnx.save(model, path)
    options = Options(autotune=False, backends=("numba-cpu",))
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    places = {v.name: at for v, at in session.planned(compilation, options).placement.values.items()}
    assert places["ck"].root is not places["pk"].root
    assert places["cv"].root is places["pv"].root
