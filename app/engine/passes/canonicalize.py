"""Reduces a graph to its canonical form: static types, few operators, nothing superfluous."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.rewriter import RewriteRule, rewrite
from app.engine.model import naming
from app.engine.model.shape_inference import inference
from app.engine.passes import outside_core
from app.engine.passes.infer_types import DECLARED, TYPED
from app.engine.rewrites import (
    algebraic,
    classical,
    constant_folding,
    contrib,
    contrib_attention,
    contrib_blocked,
    contrib_quantized,
    cse,
    gradients,
    quantization,
    transpose_sinking,
)
from app.engine.rewrites.convolutions import affine
from app.engine.types.errors import GraphError


@dataclass(frozen=True, slots=True)
class Canonicalize:
    """Inference and folding as one fixpoint: shapes fold shape arithmetic, which gives new shapes.

    `growth` is by how many bytes folded constants may make the model grow.
    """

    growth: int = 2**30

    name: ClassVar[str] = "canonicalize"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """The canonical graph, in place; what stays dynamic is named in the notes.

        All of its nodes are core operators or expressed in them; those that are not are listed.

        Raises:
            GraphError: operands do not fit an operator, or the type of a value cannot be told.
        """
        model = compilation.model
        lift_initializers(model)
        graph.order_by_wiring(model.graph)
        applied = reduce(model, self.growth, typed=model.meta.pop(TYPED, False))
        _check_types(model)
        outside = outside_core.outside_core(model.graph, compilation.registry.core)
        notes = (*compilation.notes, *_notes(applied, model), *outside_core.told(outside))
        return replace(compilation, notes=notes, outside_core=outside)


def reduce(
    model: ir.Model, growth: int, more: tuple[RewriteRule, ...] = (), *, typed: bool = False
) -> Counter[str]:
    """Apply the rules, `more` among them, until none does; how often each did.

    Operators that `more` make are not taken apart.

    `typed` tells that the types are inferred. Rules state those of what they make: only where some
    shape is left open can another inference tell more.

    Raises:
        GraphError: operands do not fit an operator.
    """
    kept = {rule.makes for rule in more if rule.makes}
    rows = (
        *constant_folding.rows(constant_folding.Budget(growth)),
        *gradients.ROWS,
        *(rule for rule in contrib.ROWS if rule.domain or kept.isdisjoint(rule.ops)),
        *contrib_attention.ROWS,
        *contrib_blocked.ROWS,
        *contrib_quantized.ROWS,
        *classical.ROWS,
        *quantization.ROWS,
        *more,
        *algebraic.ROWS,
        *affine.ROWS,
        *transpose_sinking.ROWS,
    )
    applied: Counter[str] = Counter()
    copied: float = math.inf  # bytes that transposes copied when they last were moved
    while True:
        round_ = rewrite(model.graph, rows) + cse.merge(model.graph)
        applied += round_
        if typed and not round_:
            moved, copied = transpose_sinking.move(model, copied)
            if not moved:
                break
            applied += moved
        typed = typed and _is_static(model)
        if typed:
            continue
        try:
            inference.infer(model)
            typed = True
        except GraphError:
            # What does not fit may be folded away, as long as folding gets anywhere.
            typed = False
            if not round_:
                raise
    drop_unused(model.graph)
    for node in model.graph.all_nodes():
        trim(node, model.opset_imports)
    naming.make_unique(model)
    return applied


def _is_static(model: ir.Model) -> bool:
    """True if the types and shapes of all values are known, in a graph without nested ones."""
    return not any(
        graph.bodies(node) or any((v.name or v.uses()) and graph.is_dynamic(v) for v in node.outputs)
        for node in model.graph
    )


def lift_initializers(model: ir.Model) -> None:
    """Initializers of nested graphs become initializers of the main graph."""
    for inner in model.graphs():
        if inner is model.graph:
            continue
        inner.opset_imports.update(model.opset_imports)  # a file states them for the model only
        for name, value in tuple(inner.initializers.items()):
            if value.is_graph_input():
                continue
            inner.initializers.pop(name)
            if value.is_graph_output():
                value = _copied_in(inner, value)
            count = 0
            while value.name in model.graph.initializers:
                count += 1
                value.name = f"{name}.{count}"
            model.graph.register_initializer(value)


def _copied_in(inner: ir.Graph, value: ir.Value) -> ir.Value:
    """A constant that can leave the nested graph, which keeps an Identity of it as its output."""
    lifted = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
    copy = ir.Node("", "Identity", [lifted], name=f"{value.name}.copy")
    output = copy.outputs[0]
    output.name, output.type, output.shape = f"{value.name}.copy", value.type, value.shape
    inner.append(copy)
    value.replace_all_uses_with(output, replace_graph_outputs=True)
    return lifted


def drop_unused(main: ir.Graph) -> None:
    """Remove initializers that nothing reads."""
    for name, value in tuple(main.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del main.initializers[name]


def trim(node: ir.Node, opsets: Mapping[str, int]) -> None:
    """Leave out optional inputs that are not given, and optional outputs that nothing reads."""
    version, schema = opsets.get(node.domain), None
    if version is not None and onnx.defs.has(node.op_type, version, node.domain):
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    # Those of a Loop are optional, but must be named.
    least = 0 if schema is None else schema.min_input
    while len(node.inputs) > least and node.inputs[-1] is None:
        node.resize_inputs(len(node.inputs) - 1)
    if schema is None:
        return
    formal = schema.outputs
    # Whether BatchNormalization trains could once be told by its outputs alone.
    if len(formal) < len(node.outputs) or node.op_type == "BatchNormalization":
        return
    for value, parameter in zip(node.outputs, formal):
        if parameter.option == _OPTIONAL and not value.uses() and not value.is_graph_output():
            value.name = ""
    while not node.outputs[-1].name:
        node.resize_outputs(len(node.outputs) - 1)


_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


def _check_types(model: ir.Model) -> None:
    for node in model.graph:
        for value in node.outputs:
            if value.name and value.type is None:
                raise GraphError(
                    f"{node.op_type} {node.name!r}: the type of its output {value.name!r} cannot be told",
                    pointer=f"node:{node.name}",
                )
            if value.name and value.shape is None and graph.is_tensor(value):
                _check_operands(node, model.opset_imports)
    declared: Mapping[str, ir.DataType] = model.meta.get(DECLARED, {})
    for value in model.graph.outputs:
        expected = declared.get(value.name or "")
        if expected is not None and expected != value.dtype:
            raise GraphError(
                f"output {value.name!r} is declared as {expected.name}, but the graph computes "
                f"{value.dtype.name if value.dtype else 'no tensor'}",
                pointer=f"value:{value.name}",
            )


def _check_operands(node: ir.Node, opsets: Mapping[str, int]) -> None:
    """Refuse operands whose static shapes do not fit: the shape of a result is unknown for that reason, too.

    Raises:
        GraphError: the schema of the operator refuses them.
    """
    values = [v for v in dict.fromkeys(node.inputs) if v is not None]
    shapes = [graph.shape(v) for v in values]
    if None in shapes or not onnx.defs.has(node.op_type, opsets.get(node.domain, 1), node.domain):
        return
    schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    types = {v.name or "": ir.to_proto(v).type for v in values}
    try:
        onnx.shape_inference.infer_node_outputs(schema, ir.to_proto(node), types)
    except onnx.shape_inference.InferenceError:
        told = ", ".join(f"{v.name!r} {list(s or ())}" for v, s in zip(values, shapes, strict=True))
        raise GraphError(
            f"{node.op_type} {node.name!r}: expected operands whose shapes fit, found {told}; bind other "
            "shapes to the inputs, or export the model with the dimensions free that change",
            pointer=f"node:{node.name}",
        ) from None


def _notes(applied: Counter[str], model: ir.Model) -> list[str]:
    notes = [f"{rule}: {count}" for rule, count in sorted(applied.items())]
    dynamic = [v.name or "" for v in graph.values(model.graph) if v.name and graph.is_dynamic(v)]
    if dynamic:
        shown = ", ".join(dynamic[:20]) + (", ..." if len(dynamic) > 20 else "")
        notes.append(f"{len(dynamic)} values are known only when the graph runs: {shown}")
    return notes
