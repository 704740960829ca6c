"""Errors of assignments, by a float32 graph in onnxruntime whose weights and levels are inputs.

Every rounding has a switch, so that one session computes any assignment: weights are fed as the numbers that
their integers stand for, activations pass a QuantizeLinear and a DequantizeLinear where their switch is on.
Integer products of the plan are exact, so that what it computes differs by rounding of float32 only, and by
steps of 8 bits where that decides a tie. onnxruntime runs without optimizations, which would multiply in
8 bits and saturate on CPUs without VNNI.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime

from app.engine.core import graph
from app.engine.planning.precision.candidates import BY_NAME, Candidate
from app.engine.planning.precision.qdq import Assignment, Quantities, shift_shape
from app.engine.planning.precision.rounding.ranges import Levels
from app.engine.planning.precision.rounding.weights import Rounded, restored
from app.engine.planning.precision.sites import Site, activations, results
from app.engine.report.onnx import export
from app.engine.runtime import oracle
from app.engine.types.errors import GraphError
from app.kernels.cpu.codegen import tiles

Array = np.ndarray[Any, Any]
Sample = Mapping[str, object]

Visit = Callable[[str, Array], object]

OFF = Levels(1.0, 0)
NOTHING = Quantities({}, {})
SHARING = 640  # products that share a scale of 16-bit weights at most
LEAST = 1e-30  # of the magnitude that such a scale follows from


class Simulation:
    """Outputs of a model under assignments, and what its activations are.

    Raises:
        GraphError: onnxruntime does not run the model.
    """

    def __init__(self, plain: ir.Model, sites: Sequence[Site], folder: Path, threads: int) -> None:
        self._sites, self._threads = tuple(sites), threads
        path = folder / "switched.onnx"
        export(_switched(plain, self._sites), path)
        session = self._session(path)
        path.unlink()
        self._run = oracle.running(session, [v.name or "" for v in plain.graph.outputs])
        self._observed = oracle.running(session)
        # Weights that a site had last, not in float32, and what they were made of.
        self._rounded: dict[str, tuple[Rounded | str, Array]] = {}

    def observe(self, samples: Sequence[Sample], visit: Visit, names: Sequence[str]) -> None:
        """Compute samples in float32; `visit` is called with name and array of each of these activations."""
        for sample in samples:
            made = {**sample, **self._observed({**sample, **self._switches({}, NOTHING)})}
            for name in names:
                visit(name, np.asarray(made[name]))

    def outputs_of(self, sample: Sample, assignment: Assignment, given: Quantities) -> dict[str, object]:
        """The outputs on a sample, sites computed as assigned."""
        return self._run({**sample, **self._switches(assignment, given)})

    def forget(self) -> None:
        """Give the memory of rounded weights back."""
        self._rounded.clear()

    def _switches(self, assignment: Assignment, given: Quantities) -> dict[str, object]:
        fed: dict[str, object] = {}
        shared = set()
        for site in self._sites:
            name = assignment.get(site.name)
            row = None if name is None else BY_NAME[name]
            array = site.array if row is None else self._weights(site, given, row)
            fed[_weight(site)] = np.ascontiguousarray(array)
            kind = "float32" if row is None else row.activation
            shift = None if row is None or row.half else given.weights[site.name, row.name].shift
            shift = np.zeros(site.channels, np.float32) if shift is None else shift
            fed[f"{site.name}#shift"] = np.ascontiguousarray(shift.reshape(shift_shape(site)))
            fed[_own(site)] = np.array(kind != "float32")
            fed[_drawn(site)] = np.array(kind == "dynamic")
            fed[_half(site)] = np.array(kind == "bf16")
            fed[_short(site)] = np.array(kind == "int16")
            if row is not None and row.for_all:
                shared.add(site.activation)
        for name in activations(self._sites):
            levels = given.levels.get(name, OFF)
            fed[f"{name}#on"] = np.array(name in shared)
            fed[f"{name}#scale"] = np.array(levels.scale, np.float32)
            fed[f"{name}#zero"] = np.array(levels.zero, np.uint8)
        return fed

    def _weights(self, site: Site, given: Quantities, row: Candidate) -> Array:
        source = row.activation if row.half else given.weights[site.name, row.name]
        last = self._rounded.get(site.name)
        if last is None or last[0] != source:
            if isinstance(source, Rounded):
                found = restored(site, source)
            elif source == "int16":
                found = short_weights(site)
            else:
                found = site.array.astype(ml_dtypes.bfloat16).astype(np.float32)
            last = self._rounded[site.name] = source, found
        return last[1]

    def _session(self, path: Path) -> onnxruntime.InferenceSession:
        try:
            return oracle.opened(path, threads=self._threads, optimized=False)
        except Exception as cause:  # onnxruntime raises many types, and any of them means the same
            reason = str(cause).strip().splitlines()[0][:300]
            raise GraphError(
                f"precision under an error budget is simulated in onnxruntime, which does not run the model: "
                f"{reason}",
                pointer="/options/error_budget",
            ) from cause


def _weight(site: Site) -> str:
    return f"{site.name}#weight"


def _own(site: Site) -> str:
    return f"{site.name}#own"


def _drawn(site: Site) -> str:
    return f"{site.name}#dynamic"


def _half(site: Site) -> str:
    return f"{site.name}#half"


def _short(site: Site) -> str:
    return f"{site.name}#short"


def short_weights(site: Site) -> Array:
    """Weights of a product as kernels round them to 16 bits: at most so many products have a scale."""
    array = np.moveaxis(site.array, site.axis, 0)
    taps = math.prod(array.shape[2:])
    step = max(SHARING // taps, 1)
    parts = [tiles.scaled_integers(array[:, c : c + step]) for c in range(0, array.shape[1], step)]
    real = [integers * scales.reshape(-1, *(1,) * (array.ndim - 1)) for integers, scales in parts]
    return np.moveaxis(np.concatenate(real, axis=1), 0, site.axis).astype(np.float32)


def _switched(plain: ir.Model, sites: Sequence[Site]) -> ir.Model:
    """A copy of the graph with switches before the sites, and their weights as inputs.

    Activations of sites, before they are rounded, and results are outputs too, behind those of the graph.
    """
    model = graph.copied(plain)
    main = model.graph
    nodes = {node.name: node for node in main}
    values = {v.name: v for v in graph.values(main)}

    def fed(name: str, like: ir.Value | None, kind: ir.DataType) -> ir.Value:
        shape = ir.Shape([]) if like is None else like.shape
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(kind))
        main.inputs.append(value)
        return value

    levels: dict[str, tuple[ir.Value, ir.Value]] = {}
    inner: dict[str, ir.Value] = {}
    for name in activations(sites):
        value = values[name]
        levels[name] = (
            fed(f"{name}#scale", None, ir.DataType.FLOAT),
            fed(f"{name}#zero", None, ir.DataType.UINT8),
        )
        uses = [(use.node, use.idx) for use in value.uses()]
        switch = _switch(
            value, fed(f"{name}#on", None, ir.DataType.BOOL), _static(value, levels[name]), f"{name}#"
        )
        producer = value.producer()
        if producer is None:
            main.insert_before(main[0], switch)
        else:
            main.insert_after(producer, switch)
        inner[name] = switch.outputs[0]
        for node, index in uses:
            node.replace_input_with(index, inner[name])
    for site in sites:
        node, x = nodes[site.name], inner[site.activation]
        node.replace_input_with(1, fed(_weight(site), graph.operand(node, 1), ir.DataType.FLOAT))
        drawn = fed(_drawn(site), None, ir.DataType.BOOL)
        dynamic, static = _dynamic(x), _static(x, levels[site.activation])
        integer = ir.Node("", "If", [drawn], [_branch("then", dynamic), _branch("else", static)])
        _typed(integer, x, f"{site.name}#integer")
        half = fed(_half(site), None, ir.DataType.BOOL)
        short = fed(_short(site), None, ir.DataType.BOOL)
        whole = ir.Node("", "If", [short], [_branch("then", _shorts(x, site)), _branch("else", [integer])])
        _typed(whole, x, f"{site.name}#whole")
        own = ir.Node("", "If", [half], [_branch("then", _bfloat(x)), _branch("else", [whole])])
        _typed(own, x, f"{site.name}#rounded")
        switch = _switch(x, fed(_own(site), None, ir.DataType.BOOL), [own], f"{site.name}#")
        main.insert_before(node, switch)
        node.replace_input_with(0, switch.outputs[0])
        _shifted(main, node, fed(f"{site.name}#shift", None, ir.DataType.FLOAT), site)
    known = {v.name for v in (*main.inputs, *main.outputs)}
    seen = (*activations(sites), *results(sites))
    main.outputs.extend(values[name] for name in seen if name not in known)
    for name in [n for n, v in main.initializers.items() if not v.uses() and not v.is_graph_output()]:
        del main.initializers[name]
    return model


def _shifted(main: ir.Graph, node: ir.Node, shift: ir.Value, site: Site) -> None:
    """Add a number to each output channel of a product; outputs of the graph keep their names."""
    (y,) = node.outputs
    shift.shape = ir.Shape((site.channels, *shift_shape(site)[1:]))
    uses = [(use.node, use.idx) for use in y.uses()]
    total = ir.Node("", "Add", [y, shift], name=f"{site.name}#total")
    (moved,) = total.outputs
    moved.shape, moved.type, moved.name = y.shape, y.type, f"{site.name}#moved"
    main.insert_after(node, total)
    for reader, index in uses:
        reader.replace_input_with(index, moved)
    if y.is_graph_output():
        main.outputs[list(main.outputs).index(y)] = moved
        y.name, moved.name = f"{site.name}#plain", y.name


def _switch(x: ir.Value, on: ir.Value, rounding: list[ir.Node], name: str) -> ir.Node:
    """`x` rounded where `on` is true."""
    same = ir.Node("", "Identity", [x])
    same.outputs[0].name = f"{name}same"
    same.outputs[0].shape, same.outputs[0].type = x.shape, x.type
    node = ir.Node("", "If", [on], [_branch("then", rounding), _branch("else", [same])], name=f"{name}switch")
    node.outputs[0].name = f"{name}switched"
    node.outputs[0].shape, node.outputs[0].type = x.shape, x.type
    return node


def _branch(which: str, nodes: list[ir.Node]) -> ir.Attr:
    body = ir.Graph([], [nodes[-1].outputs[0]], nodes=nodes, name=which)
    return ir.AttrGraph(f"{which}_branch", body)


def _static(x: ir.Value, levels: tuple[ir.Value, ir.Value]) -> list[ir.Node]:
    quantize = ir.Node("", "QuantizeLinear", [x, *levels])
    real = ir.Node("", "DequantizeLinear", [quantize.outputs[0], *levels])
    return _named(x, [quantize, real])


def _dynamic(x: ir.Value) -> list[ir.Node]:
    quantize = ir.Node("", "DynamicQuantizeLinear", [x], num_outputs=3)
    real = ir.Node("", "DequantizeLinear", list(quantize.outputs))
    return _named(x, [quantize, real])


def _bfloat(x: ir.Value) -> list[ir.Node]:
    short = ir.Node("", "Cast", [x], [ir.AttrInt64("to", int(ir.DataType.BFLOAT16))])
    real = ir.Node("", "Cast", [short.outputs[0]], [ir.AttrInt64("to", int(ir.DataType.FLOAT))])
    return _named(x, [short, real])


def _shorts(x: ir.Value, site: Site) -> list[ir.Node]:
    """Multiples of a scale by which the largest magnitude is SCALED_MOST, of all of an image, or of a row.

    Kernels have scales of strips, and of chunks of rows, which are no larger.
    """
    limits = [
        ir.node("Constant", [], {"value": ir.tensor(np.float32(n))}) for n in (LEAST, tiles.SCALED_MOST)
    ]
    least, most = (node.outputs[0] for node in limits)
    magnitudes = ir.Node("", "Abs", [x])
    rows = [] if site.op == "Conv" else [ir.node("Constant", [], {"value": ir.tensor(np.array([-1]))})]
    places = [*magnitudes.outputs, *(node.outputs[0] for node in rows)]
    peak = ir.Node("", "ReduceMax", places, [ir.AttrInt64("keepdims", 1 if rows else 0)])
    bounded = ir.Node("", "Max", [peak.outputs[0], least])
    scale = ir.Node("", "Div", [bounded.outputs[0], most])
    quotient = ir.Node("", "Div", [x, scale.outputs[0]])
    integers = ir.Node("", "Round", list(quotient.outputs))
    real = ir.Node("", "Mul", [integers.outputs[0], scale.outputs[0]])
    return _named(x, [*limits, magnitudes, *rows, peak, bounded, scale, quotient, integers, real])


def _typed(node: ir.Node, like: ir.Value, name: str) -> None:
    """Name the output of a node, which has the shape and type of another value."""
    (value,) = node.outputs
    value.name, value.shape, value.type = name, like.shape, like.type


def _named(x: ir.Value, nodes: list[ir.Node]) -> list[ir.Node]:
    """Name the inner values; names of a branch hide none outside."""
    for node in nodes:
        for index, value in enumerate(node.outputs):
            value.name = f"{x.name}#{node.op_type}{index}#{id(node):x}"
    last = nodes[-1].outputs[0]
    last.shape, last.type = x.shape, x.type
    return nodes
