"""Groups of one node from a line of ONNX text, run by an implementation row and by an oracle."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from app.engine.core.group import Group
from app.engine.core.registry import Registry
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, context, group_of, implementation, model_of, run_group

_NAMES = {"float32": "float", "float64": "double"}  # where ONNX text says it otherwise than NumPy


def node_text(
    body: str, inputs: dict[str, Array], outputs: Sequence[str] = ("y",), *, opset: int = 21, domain: str = ""
) -> str:
    """A model of one node: `body` is `Slice <...> (x, starts, ends)`, its inputs are the arrays."""
    declared = []
    for name, array in inputs.items():
        sizes = f"[{','.join(map(str, array.shape))}]" if array.ndim else ""  # `float[]` has no rank
        declared.append(f"{_NAMES.get(array.dtype.name, array.dtype.name)}{sizes} {name}")
    imports = f'"": {opset}' + (f', "{domain}": 1' if domain else "")
    head = f"<ir_version: 10, opset_import: [{imports}]> agraph ({', '.join(declared)})"
    results = ", ".join(o for o in outputs if o)
    names = ", ".join(o or '""' for o in outputs)
    return f"{head} => ({results}) {{ {names} = {body} }}"


def node_group(
    registry: Registry,
    body: str,
    inputs: dict[str, Array],
    constants: dict[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    **options: Any,
) -> Group:
    """The group of one node; `constants` are inputs that become initializers."""
    fixed = constants or {}
    return group_of(model_of(node_text(body, inputs | fixed, outputs, **options), fixed), registry)


def run_node(
    registry: Registry,
    compiler: Compiler,
    row: str,
    body: str,
    inputs: dict[str, Array],
    constants: dict[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    *,
    threads: int = 1,
    inplace: bool = False,
    **options: Any,
) -> list[Array]:
    """Outputs of a row of the registry; with `inplace` the pairs that it names share memory."""
    group = node_group(registry, body, inputs, constants, outputs, **options)
    chosen = implementation(row, registry)
    alias = chosen.inplace(group, context(threads)) if inplace else ()
    assert alias or not inplace, f"{row} names no in-place pair"
    return run_group(chosen, group, inputs, compiler, threads=threads, alias=alias)


def reference(
    body: str, inputs: dict[str, Array], outputs: Sequence[str] = ("y",), *, opset: int = 21
) -> list[Array]:
    """The same node in the reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.parser.parse_model(node_text(body, inputs, outputs, opset=opset))
    return [np.asarray(r) for r in ReferenceEvaluator(model).run(None, inputs)]
