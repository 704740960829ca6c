"""Groups of one node, from arrays and attributes or from a line of ONNX text, run by a row and by an oracle."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from app.engine.core.group import Group
from app.engine.core.registry import load
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, context, group_of, implementation, model_of, run_group

REGISTRY = load()


def kind_of(dtype: Any) -> str:
    """The element type of an array in ONNX text."""
    return str(onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))).lower()  # noqa: TID251


def node_text(
    body: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | Mapping[str, Any] = ("y",),
    *,
    opset: int = 21,
    domain: str = "",
) -> str:
    """A model of one node: `body` is `Slice <...> (x, starts, ends)`, its inputs are the arrays.

    `outputs` are names; or dtypes by name; or, where shape inference has no rule, arrays like them by name.
    """
    declared = ", ".join(f"{_type_text(array)} {name}" for name, array in inputs.items())
    imports = f'"": {opset}' + (f', "{domain}": 1' if domain else "")
    if isinstance(outputs, Mapping):
        types = [like if isinstance(like, np.ndarray) else None for like in outputs.values()]
        results = ", ".join(
            f"{kind_of(like)}[] {name}" if typed is None else f"{_type_text(typed)} {name}"
            for (name, like), typed in zip(outputs.items(), types)
        )
    else:
        results = ", ".join(o for o in outputs if o)
    names = ", ".join(o or '""' for o in outputs)
    return f"<ir_version: 10, opset_import: [{imports}]> g ({declared}) => ({results}) {{ {names} = {body} }}"


def _type_text(array: Array) -> str:
    # In ONNX text `float` has rank 0 and `float[]` no known rank.
    return kind_of(array.dtype) + (f"[{','.join(map(str, array.shape))}]" if array.ndim else "")


def text_group(
    body: str,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: Sequence[str] | Mapping[str, Any] = ("y",),
    **options: Any,
) -> Group:
    """The group of one node in ONNX text; `constants` are inputs that become initializers."""
    fixed = dict(constants or {})
    return group_of(model_of(node_text(body, {**inputs, **fixed}, outputs, **options), fixed), REGISTRY)


def node_group(
    op: str,
    inputs: Mapping[str, Array | None],
    outputs: Mapping[str, Any],
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
    operands = ", ".join((*(n if a is not None else '""' for n, a in inputs.items()), *repeat))
    given = {n: a for n, a in inputs.items() if a is not None}
    fixed = {n: given[n] for n in constants if n in given}
    # The declared order of inputs is that of the node, initializers among them.
    text = node_text(f"{op} {f'<{written}>' if written else ''} ({operands})", given, outputs, opset=opset)
    return group_of(model_of(text, fixed), REGISTRY)


def run_node(
    compiler: Compiler,
    name: str,
    group: Group,
    inputs: Mapping[str, Array | None],
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


def run_text(
    compiler: Compiler,
    name: str,
    body: str,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    *,
    threads: int = 1,
    inplace: bool = False,
    **options: Any,
) -> list[Array]:
    """Outputs of one node in ONNX text by the implementation of that name; `options` are of `node_text`."""
    group = text_group(body, inputs, constants, outputs, **options)
    return run_node(compiler, name, group, inputs, threads=threads, inplace=inplace)


def rejection_of(name: str, group: Group) -> str | None:
    """Reason why the implementation of that name does not apply."""
    return implementation(name, REGISTRY).rejection(group, context())


def reference(
    body: str, inputs: Mapping[str, Array], outputs: Sequence[str] = ("y",), *, opset: int = 21
) -> list[Array]:
    """The same node in the reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.parser.parse_model(node_text(body, inputs, outputs, opset=opset))
    return [np.asarray(r) for r in ReferenceEvaluator(model).run(None, dict(inputs))]
