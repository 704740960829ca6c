"""A symbol and its parameters as an ONNX model."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from app.engine.model.mxnet import params_file, symbol_file
from app.engine.model.mxnet.attributes import Attributes
from app.engine.model.mxnet.builder import OPSET, Builder, Call, Room, dimension
from app.engine.model.mxnet.operators import OPERANDS, ROWS, backward
from app.engine.model.mxnet.operators.refused import REFUSED
from app.engine.model.mxnet.params_file import STORAGE, Parameter
from app.engine.model.mxnet.symbol_file import VARIABLE, Symbol, SymbolNode
from app.engine.model.shape_inference.mxnet_rules import RULES
from app.engine.model.shape_inference.tensor_rules import BACKWARD
from app.engine.types.errors import ExternalDataError, GraphError, ModelTooLargeError, UnknownOperatorError
from app.engine.types.limits import Limits
from app.engine.types.storage import DECLARED, MXNET, is_note

_IR_VERSION = 10
_FED = frozenset({"data", "state", "state_cell"})  # operands of layers that are no parameters
_NAMED = 5  # nodes of an operator that an error names
# Attributes of variables that become types, and the values of others that say nothing.
_TYPES = frozenset({"__shape__", "__dtype__", DECLARED})
_DEFAULTS = {"__lr_mult__": "1.0", "__wd_mult__": "1.0"}
_WINDOWS = frozenset({"Convolution", "Deconvolution", "Pooling"})
_KEEPING = """Activation BatchNorm BlockGrad Cast Dropout LRN LeakyReLU Pad SwapAxis _copy _div_scalar
_minus_scalar _mul_scalar _plus_scalar cast clip identity relu sigmoid swapaxes tanh transpose"""
_RANK_KEEPING = frozenset(_KEEPING.split())


def read(path: Path, external: Mapping[str, Path], limits: Limits) -> onnx.ModelProto:
    """The model of a symbol; every external file holds parameters.

    Variables that the parameters do not name are its inputs, but for weights of layers.

    Raises:
        UnknownOperatorError: names all operators that have no row, with nodes.
        GraphError: or the child that names the defect.
    """
    symbol = symbol_file.read(path, limits)
    unknown = _unknown(symbol)
    if unknown:
        listed = ", ".join(f"{op} ({_few(names)})" for op, names in sorted(unknown.items()))
        reasons = "".join(f"; {op}: {REFUSED[op]}" for op in sorted(unknown) if op in REFUSED)
        raise UnknownOperatorError(
            "the symbol has operators of MXNet that can neither be expressed in ONNX nor planned: "
            f"{listed}{reasons}"
        )
    total = path.stat().st_size + sum(f.stat().st_size for f in external.values() if f.is_file())
    if total > limits.nbytes:
        raise ModelTooLargeError(f"symbol and parameters have {total} byte, allowed are {limits.nbytes}")
    parameters: dict[str, Parameter] = {}
    for name, file in sorted(external.items()):
        found = params_file.read(file, f"parameters {name!r}", limits)
        twice = sorted(parameters.keys() & found.keys())
        if twice:
            raise ExternalDataError(f"parameters {name!r}: {twice[0]!r} is also in another file")
        parameters |= found
    return ir.to_proto(_Conversion(symbol, parameters, limits, has_files=bool(external)).model())


def _unknown(symbol: Symbol) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for node in _nodes(symbol):
        if node.op not in (VARIABLE, *ROWS, *RULES) and not _is_backward(node):
            found[node.op].append(node.name)
    return found


def _is_backward(node: SymbolNode) -> bool:
    """True for a node of a gradient that has no row of its own, and names its forward node."""
    known = node.op in ROWS or node.op in RULES
    return node.follows is not None and (not known or node.op.startswith("_backward_"))


def _is_opaque(node: SymbolNode) -> bool:
    """True for a node that can be planned only."""
    return node.op in RULES and node.op not in ROWS


def _nodes(symbol: Symbol) -> Iterator[SymbolNode]:
    for node in symbol.nodes:
        yield node
        for nested in node.subgraphs:
            yield from _nodes(nested)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"node{'s' if len(names) > 1 else ''} {', '.join(map(repr, names[:_NAMED]))}{more}"


class _Conversion:
    """The graph of a symbol under construction; `inputs` are the variables that have no data."""

    def __init__(
        self, symbol: Symbol, parameters: Mapping[str, Parameter], limits: Limits, *, has_files: bool
    ) -> None:
        self._symbol = symbol
        self._parameters = parameters
        self._has_files = has_files
        self._is_training = any(_is_backward(node) for node in _nodes(symbol))
        self._builder = Builder(Room(limits.nodes, limits.nbytes), is_training=self._is_training)
        self._inputs: list[ir.Value] = []
        self._readers: dict[int, list[tuple[SymbolNode, int, int]]] = defaultdict(list)  # node, slot, index
        for i, node in enumerate(symbol.nodes):
            for slot, (source, _) in enumerate(node.inputs):
                self._readers[source].append((node, slot, i))

    def model(self) -> ir.Model:
        """The model of the whole symbol."""
        names = [self._symbol.nodes[i].name for i in self._symbol.variables]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise GraphError(f"two variables of the symbol are named {twice[0]!r}; expected a name for each")
        bound = [self._variable(i) for i in self._symbol.variables]
        results = self._convert(self._symbol, self._builder, bound)
        outputs = self._outputs(results)
        graph = ir.Graph(
            [v for v in (*self._inputs, *self._builder.masks.values()) if v.uses()],
            outputs,
            nodes=self._builder.nodes,
            initializers=[v for v in self._builder.constants if v.uses()],
            opset_imports=self._opsets(),
            name="symbol",
        )
        _forget(graph)
        return ir.Model(graph, ir_version=_IR_VERSION, producer_name="mxnet")

    def _opsets(self) -> dict[str, int]:
        """Operator sets that the nodes are of."""
        found = {"": OPSET}
        if self._is_training:
            found[BACKWARD[0]] = 1
        if any(_is_opaque(node) for node in _nodes(self._symbol)):
            found[MXNET] = 1
        return found

    def _convert(self, symbol: Symbol, builder: Builder, bound: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """Add the nodes of a symbol whose variables are these values; returns its outputs."""
        if len(bound) != len(symbol.variables):
            raise GraphError(f"a subgraph has {len(symbol.variables)} variables and {len(bound)} operands")
        found: dict[int, tuple[ir.Value, ...]] = {i: (v,) for i, v in zip(symbol.variables, bound)}
        for i, node in enumerate(symbol.nodes):
            if node.op != VARIABLE:
                if _is_backward(node):
                    found[i] = self._backward(symbol, node, found, builder)
                else:
                    operands = [_output(symbol, found, e) for e in node.inputs]
                    found[i] = self._translated(node, operands, builder)
        return tuple(_output(symbol, found, head) for head in symbol.heads)

    def _backward(
        self,
        symbol: Symbol,
        node: SymbolNode,
        found: Mapping[int, tuple[ir.Value, ...]],
        builder: Builder,
    ) -> tuple[ir.Value, ...]:
        """Outputs of a backward node; what only training computes it does not read."""
        known = itertools.takewhile(lambda e: e[1] < len(found[e[0]]), node.inputs)
        operands = [_output(symbol, found, e) for e in known]
        source = symbol.nodes[node.follows or 0]
        read = tuple(_output(symbol, found, e) for e in source.inputs)
        titles = (f"{n.op} {n.name!r}" for n in (node, source))
        attributes = [Attributes(n.attributes, title) for n, title in zip((node, source), titles)]
        call = Call(node, tuple(operands), attributes[0], builder, self._convert)
        if source.op not in ROWS:
            raise call.error(f"its forward node {source.op} {source.name!r} has no row")
        forward = Call(source, read, attributes[1], builder, self._convert)
        try:
            return backward.translated(
                call, forward, lambda again: self._translated(source, list(again.inputs), builder)
            )
        except (IndexError, ValueError, ArithmeticError) as cause:
            raise call.error(f"its operands and attributes do not fit: {cause}") from cause

    def _translated(
        self, node: SymbolNode, operands: list[ir.Value], builder: Builder
    ) -> tuple[ir.Value, ...]:
        if _is_opaque(node):
            return builder.opaque(node, operands, node.outputs)
        title = f"{node.op} {node.name!r}"
        slots = OPERANDS.get(node.op, ())
        # The oldest releases do not write statistics as operands.
        unwritten = [f"{node.name}_{s}" for s in slots[len(operands) :] if s.startswith("moving_")]
        operands += [self._parameter(name, "") for name in unwritten if name in self._parameters]
        attributes = Attributes(node.attributes, title)
        call = Call(node, tuple(operands), attributes, builder, self._convert)
        try:
            results = ROWS[node.op](call)
        except (IndexError, ValueError, ArithmeticError) as cause:
            # Fewer or more operands than a translation unpacks, or numbers that int64 does not hold.
            raise GraphError(
                f"{title}: its {len(operands)} operands and attributes do not fit: {cause}"
            ) from cause
        if node.follows is None:  # nodes of a gradient have all attributes of their forward nodes
            attributes.check_read()
        return (results,) if isinstance(results, ir.Value) else results

    def _variable(self, index: int) -> ir.Value:
        node = self._symbol.nodes[index]
        attributes = Attributes(node.attributes, f"variable {node.name!r}")
        shape = attributes.integers("__shape__") if attributes.given("__shape__") else None
        storage = attributes.integer("__storage_type__", -1)
        kind = STORAGE[storage][0] if storage in STORAGE else "default"
        notes = _notes(node.attributes)
        if node.name in self._parameters:
            value = self._parameter(node.name, kind)
            if value.const_value is not None:
                value.const_value.metadata_props.update(notes)
            _check_shape(node.name, shape, self._parameters[node.name].array.shape)
            return value
        self._check_fed(node, index)
        dtype = attributes.dtype("__dtype__", "float32") or np.dtype("f4")
        if shape is None:
            shape = self._hinted(index)
        dims = (
            None
            if shape is None
            else [d if d > 0 else dimension(f"{node.name}_{i}") for i, d in enumerate(shape)]
        )
        value = ir.Value(
            name=self._builder.unique(node.name),
            shape=None if dims is None else ir.Shape(dims),
            type=ir.TensorType(ir.DataType.from_numpy(dtype)),
        )
        if kind != "default":
            value.metadata_props[DECLARED] = kind
        value.metadata_props.update(notes)
        self._inputs.append(value)
        return value

    def _parameter(self, name: str, declared: str) -> ir.Value:
        parameter = self._parameters[name]
        value = self._builder.constant(parameter.array, name)
        storage = declared if parameter.storage == "default" else parameter.storage
        tensor = value.const_value
        if storage not in ("", "default") and tensor is not None:
            tensor.metadata_props[DECLARED] = storage
        return value

    def _check_fed(self, node: SymbolNode, index: int) -> None:
        """Refuse a weight without data.

        Raises:
            ExternalDataError: names the variable and how to give its data.
        """
        if self._is_training and node.attributes.get("__shape__"):
            return  # an argument of the training graph
        for reader, slot, _ in self._readers[index]:
            names = OPERANDS.get(reader.op, ())
            if slot < len(names) and names[slot] not in _FED:
                where = "the parameters do not name it" if self._has_files else "no parameters were given"
                role = f"the {names[slot]} of {reader.op} {reader.name!r}"
                raise ExternalDataError(
                    f"variable {node.name!r} is {role}, and {where}. "
                    "Give the file NAME-0000.params with the symbol: put it beside NAME-symbol.json for "
                    "`stowplan`, drop both on the page, or name it in a manifest (`createModel`)",
                    pointer=f"value:{node.name}",
                )

    def _hinted(self, index: int) -> tuple[int, ...] | None:
        """The rank of an input from what reads it, 0 in the place of sizes: a kernel has two axes less."""
        seen, left = {index}, [index]
        while left:
            source = left.pop(0)
            for reader, slot, at in self._readers[source]:
                if slot == 0 and reader.op in _WINDOWS:
                    kernel = Attributes(reader.attributes, f"{reader.op} {reader.name!r}").integers(
                        "kernel", ()
                    )
                    if 1 <= len(kernel) <= 3:
                        return (0, self._channels(reader) if source == index else 0, *[0] * len(kernel))
                if slot == 0 and reader.op == "RNN":
                    return (0, 0, 0)
                if slot == 0 and reader.op in _RANK_KEEPING and at not in seen:
                    seen.add(at)
                    left.append(at)
        return None

    def _channels(self, reader: SymbolNode) -> int:
        """Channels of the operand of a convolution, from its weight; 0 where that tells nothing."""
        weight = self._symbol.nodes[reader.inputs[1][0]].name if len(reader.inputs) > 1 else ""
        if reader.op != "Convolution" or weight not in self._parameters:
            return 0
        groups = Attributes(reader.attributes, f"{reader.op} {reader.name!r}").integer("num_group", 1)
        shape = self._parameters[weight].array.shape
        return shape[1] * groups if len(shape) > 1 else 0

    def _outputs(self, results: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """The results as outputs of the graph, named as MXNet names them: NAME_output, or NAME_output1."""
        heads = self._symbol.heads
        outputs = self._builder.distinct((), results, "output")
        counts = Counter(node for node, _ in heads)
        for value, (index, output) in zip(outputs, heads):
            several = counts[index] > 1 or output
            name = f"{self._symbol.nodes[index].name}_output{output if several else ''}"
            value.name = self._builder.unique(name)
            if value.dtype is None:
                raise GraphError(f"the element type of output {name!r} is not known")
        return outputs


def _notes(attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes of a variable that are kept beside it: multipliers, layout, initializer."""
    return {
        k: v
        for k, v in sorted(attributes.items())
        if is_note(k) and k not in _TYPES and v != _DEFAULTS.get(k)
    }


def _output(symbol: Symbol, found: Mapping[int, tuple[ir.Value, ...]], entry: tuple[int, int]) -> ir.Value:
    node, output = entry
    if output >= len(found[node]):
        raise GraphError(
            f"{symbol.nodes[node].op} {symbol.nodes[node].name!r} has no output {output}; "
            f"{len(found[node])} are computed in an inference"
        )
    return found[node][output]


def _check_shape(name: str, declared: Sequence[int] | None, found: Sequence[int]) -> None:
    if declared is None or not declared:
        return
    if len(declared) != len(found) or any(d > 0 and d != f for d, f in zip(declared, found)):
        raise GraphError(
            f"variable {name!r} is declared as {list(declared)}, its data have the shape {list(found)}",
            pointer=f"value:{name}",
        )


def _forget(graph: ir.Graph) -> None:
    """Drop what was inferred of inner values, also of nested graphs; the passes infer it anew."""
    nodes = tuple(graph.all_nodes())
    kept = {v for g in {n.graph for n in nodes} if g is not None for v in g.outputs}
    for node in nodes:
        for value in node.outputs:
            value.metadata_props.clear()
            value.const_value = None
            if value not in kept:
                value.shape = value.type = None
