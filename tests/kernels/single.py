"""Groups of one node from arrays and attributes, for tests of kernel rows."""

from typing import Any

import numpy as np
import onnx

from app.engine.core.group import Group
from app.engine.core.registry import load
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import context, group_of, implementation, model_of, run_group

Array = np.ndarray[Any, Any]
REGISTRY = load()


def kind_of(dtype: Any) -> str:
    """The element type of an array in ONNX text."""
    return str(onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))).lower()  # noqa: TID251


def node_group(
    op: str,
    inputs: dict[str, Array | None],
    outputs: dict[str, Any],
    *,
    constants: tuple[str, ...] = (),
    repeat: tuple[str, ...] = (),
    opset: int = 23,
    **attributes: object,
) -> Group:
    """A group of one node.

    Args:
        op: operator type.
        inputs: arrays by name, in order; None is an omitted one.
        outputs: dtypes by name, in order; an array, where shape inference has no rule, gives the shape too.
        constants: names of inputs that are initializers.
        repeat: names of inputs that the node reads once more, after the others.
        opset: of the model.
        attributes: of the node: numbers, strings, lists of integers.
    """
    written = ", ".join(
        f"{name} = {list(value)}"
        if isinstance(value, tuple | list)
        else f"{name} = {value!r}".replace("'", '"')
        for name, value in attributes.items()
    )
    written = f"<{written}>" if written else ""
    # In ONNX text `float` has rank 0 and `float[]` no known rank.
    extents = {
        n: f"[{','.join(map(str, a.shape))}]" if a.ndim else "" for n, a in inputs.items() if a is not None
    }
    given = ", ".join(f"{kind_of(a.dtype)}{extents[n]} {n}" for n, a in inputs.items() if a is not None)
    made = ", ".join(
        f"{kind_of(like.dtype)}[{','.join(map(str, like.shape))}] {name}"
        if isinstance(like, np.ndarray)
        else f"{kind_of(like)}[] {name}"
        for name, like in outputs.items()
    )
    passed = ", ".join(n if a is not None else '""' for n, a in inputs.items())
    passed = ", ".join((passed, *repeat))
    text = (
        f'<ir_version: 10, opset_import: ["": {opset}]> g ({given}) => ({made}) '
        f"{{ {', '.join(outputs)} = {op} {written} ({passed}) }}"
    )
    return group_of(model_of(text, {n: inputs[n] for n in constants if inputs[n] is not None}), REGISTRY)  # type: ignore[misc]


def run_node(
    compiler: Compiler,
    name: str,
    group: Group,
    inputs: dict[str, Array | None],
    *,
    threads: int = 1,
    inplace: bool = False,
) -> list[Array]:
    """Outputs of a group by the implementation of that name; with `inplace`, over the inputs it allows."""
    row = implementation(name, REGISTRY)
    alias = row.inplace(group, context(threads)) if inplace else ()
    assert alias or not inplace, f"{name} declares no in-place pair"
    arrays = {n: a for n, a in inputs.items() if a is not None}
    return run_group(row, group, arrays, compiler, threads=threads, alias=alias)


def refusal_of(name: str, group: Group) -> str | None:
    """Why the implementation of that name does not apply."""
    return implementation(name, REGISTRY).rejection(group, context())
