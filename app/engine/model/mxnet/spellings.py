"""Which operators of ONNX each operator of MXNet becomes: its translation, tried on small operands.

The rows of `app.engine.model.mxnet.operators` are functions; what they make is told by calling them.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence, Set

import onnx_ir as ir

from app.engine.model.mxnet.attributes import Attributes
from app.engine.model.mxnet.builder import Builder, Call, Room
from app.engine.model.mxnet.operators import ROWS
from app.engine.model.mxnet.symbol_file import Symbol, SymbolNode
from app.engine.types.errors import GraphError

# Shapes of the operands; those are taken that the least of them fit.
_SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((2, 4, 6, 6),) * 6,
    ((2, 4, 6, 6), (4, 4, 1, 1), *((4,),) * 4),
    ((2, 4), (4, 4), *((4,),) * 4),
    ((2, 4, 12), (2, 4, 12)),
    ((4,),) * 3,
)
# Attributes that are required somewhere; an operator reads those that it knows.
_REQUIRED = {
    "kernel": "(1, 1)", "num_filter": "4", "num_hidden": "4", "scalar": "2", "a_min": "0", "a_max": "1",
    "begin": "(0,)", "end": "(1,)", "num_outputs": "2", "reps": "(2, 2)",
    "pad_width": "(0, 0, 0, 0, 1, 1, 1, 1)",
    "block_size": "2", "depth": "3", "input_dim": "3", "output_dim": "4", "nsize": "3", "dtype": "float32",
    "scale": "2", "num_group": "2", "start": "0", "stop": "4", "repeats": "2", "value": "1", "heads": "2",
    "indices": "(1,)", "dim1": "0", "dim2": "1", "sample_type": "nearest",
}  # fmt: skip
_SHAPED: tuple[Mapping[str, str], ...] = (
    {},
    {"axis": "0"},
    {"act_type": "relu"},
    {"axis": "0", "begin": "0", "end": "1", "num_outputs": "0"},
    {"shape": "(2, 144)"},
    {"shape": "(2, 4, 6, 6)"},
    {"shape": "(2, 4, 6, 6)", "num_group": "1"},
)
# Attributes by which an operator is one of several.
_CHOICES = (
    *(("pool_type", kind) for kind in ("max", "avg", "sum", "lp")),
    *(("act_type", kind) for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")),
    *(("act_type", kind) for kind in ("leaky", "elu", "selu", "gelu", "prelu")),
)
# Operators that no sample fits: they run nested symbols, or cut their weights out of one vector.
NESTED = {"_foreach": "Scan", "_while_loop": "Loop", "_cond": "If", "RNN": "RNN LSTM GRU"}
_GLUE = frozenset(
    {
        *("Cast", "Reshape", "Shape", "Size", "Transpose", "Unsqueeze"),
        *("Squeeze", "Concat", "Identity", "Expand", "Slice"),
    }
)


@functools.cache
def spellings() -> Mapping[str, tuple[str, ...]]:
    """Operators of ONNX by operator of MXNet, `Pooling (pool_type=max)` where an attribute decides."""
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(ROWS, key=lambda name: (name.startswith("_"), name)):  # public names first
        if name in NESTED:
            found[name] = tuple(NESTED[name].split())
            continue
        plain = next(_made(name, {}), None)
        if plain is None:
            continue
        read, made = plain
        chosen = {c: next(_made(name, dict([c])), None) for c in _CHOICES if c[0] in read}
        if chosen:
            found |= {f"{name} ({k}={v})": t[1] for (k, v), t in chosen.items() if t is not None}
        else:
            found[name] = made
    return found


def main_operator(made: Sequence[str]) -> str | None:
    """The operator that a translation is about, among those that prepare its operands; None of several."""
    left = [op for op in made if op not in _GLUE] or list(made[-1:])
    return left[0] if len(left) == 1 else None


def _made(name: str, choice: Mapping[str, str]) -> Iterator[tuple[Set[str], tuple[str, ...]]]:
    """Translations that succeed, of least operands first: attributes that were read, and operators."""
    for count in range(len(_SHAPES[0]) + 1):
        for shapes in _SHAPES:
            for shaped in _SHAPED if len(shapes) >= count else ():
                found = _translated(name, shapes[:count], {**_REQUIRED, **shaped, **choice})
                if found is not None:
                    yield found


def _translated(
    name: str, shapes: Sequence[tuple[int, ...]], given: Mapping[str, str]
) -> tuple[Set[str], tuple[str, ...]] | None:
    """Attributes that one translation read, and operators that it makes; None where it refuses."""
    builder = Builder(Room(1000, 2**20))
    operands = tuple(
        ir.Value(name=f"x{i}", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for i, shape in enumerate(shapes)
    )
    attributes = Attributes(given, name)
    try:
        ROWS[name](Call(SymbolNode(name, name, given, ()), operands, attributes, builder, _no_subgraph))
    except (GraphError, IndexError, ValueError, ArithmeticError, KeyError):
        return None
    # Arithmetic on indices and shapes prepares operands, unless nothing else is made.
    floats = [n.op_type for n in builder.nodes if n.outputs[0].dtype not in _INDICES]
    made = floats if any(op not in _GLUE for op in floats) else [n.op_type for n in builder.nodes]
    return attributes.read, tuple(dict.fromkeys(made))


_INDICES = (ir.DataType.INT64, ir.DataType.INT32)


def _no_subgraph(_symbol: Symbol, _builder: Builder, _bound: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
    raise GraphError("a sample has no nested symbol")
