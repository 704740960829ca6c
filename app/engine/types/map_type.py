"""The type of maps, which onnx_ir has not, its form in a model file, and sequences of maps as values.

Maps are what ZipMap makes of scores and what DictVectorizer and CastMap take. Nothing here computes
with them; they pass through plans as Python dictionaries, outside the arena.
"""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import onnx
import onnx_ir as ir


class MapType(ir.TensorType):
    """A map from integers or strings to tensors of numbers of rank 0.

    Derived from the type of a tensor of unknown elements, as which onnx_ir writes it: it refuses other
    types. `declare` then puts the right one into the message.
    """

    def __init__(self, key: ir.DataType, value: ir.DataType) -> None:
        super().__init__(ir.DataType.UNDEFINED)
        self.key = key
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapType) and (self.key, self.value) == (other.key, other.value)

    def __hash__(self) -> int:
        return hash((self.key, self.value))

    def __repr__(self) -> str:
        return f"MapType({self.key!r}, {self.value!r})"

    def __str__(self) -> str:
        return f"map({self.key}, {self.value})"


def has_map(type_: ir.TypeProtocol | None) -> bool:
    """True if a type is a map, or a sequence or optional of maps."""
    while isinstance(type_, ir.SequenceType | ir.OptionalType):
        type_ = type_.elem_type
    return isinstance(type_, MapType)


def detach(graphs: Iterable[onnx.GraphProto]) -> dict[str, ir.TypeProtocol]:
    """Take types with maps out of a message, from which onnx_ir reads none; by the names of values."""
    found = {}
    for graph in graphs:
        for value in (*graph.input, *graph.output, *graph.value_info):
            type_ = _read(value.type)
            if type_ is not None and has_map(type_):
                found[value.name] = type_
                value.ClearField("type")
    return found


def declare(proto: onnx.GraphProto, body: ir.Graph) -> None:
    """Write types with maps into the message that onnx_ir made of a graph."""
    made = (*body.inputs, *(v for node in body for v in node.outputs))
    types = {v.name: v.type for v in made if v.type is not None and has_map(v.type)}
    for value in (*proto.input, *proto.output, *proto.value_info):
        if value.name in types:
            value.ClearField("type")
            _write(value.type, types[value.name])


def _read(proto: onnx.TypeProto) -> ir.TypeProtocol | None:
    """The type, as far as it leads to a map."""
    kind = proto.WhichOneof("value")
    if kind == "map_type":
        element = proto.map_type.value_type.tensor_type.elem_type
        return MapType(ir.DataType(proto.map_type.key_type), ir.DataType(element))
    if kind not in ("sequence_type", "optional_type"):
        return None
    inner = _read(getattr(proto, kind).elem_type)
    outer = ir.SequenceType if kind == "sequence_type" else ir.OptionalType
    return None if inner is None else outer(inner)


def _write(proto: onnx.TypeProto, type_: ir.TypeProtocol) -> None:
    if isinstance(type_, MapType):
        proto.map_type.key_type = int(type_.key)
        proto.map_type.value_type.tensor_type.elem_type = int(type_.value)
        proto.map_type.value_type.tensor_type.shape.SetInParent()
    elif isinstance(type_, ir.SequenceType):
        _write(proto.sequence_type.elem_type, type_.elem_type)
    elif isinstance(type_, ir.OptionalType):
        _write(proto.optional_type.elem_type, type_.elem_type)


Label = int | str


class ScoreMaps(Sequence[dict[Label, float]]):
    """Maps from labels to scores of samples, as ZipMap makes them: an array until somebody reads a map.

    Each reading makes a new dictionary.

    Attributes:
        labels: keys of every map, in order.
        scores: float32[samples, labels].
    """

    __slots__ = ("labels", "scores")

    def __init__(self, labels: tuple[Label, ...], scores: np.ndarray[Any, Any]) -> None:
        self.labels = labels
        self.scores = scores

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> dict[Label, float]: ...

    @overload
    def __getitem__(self, index: slice) -> "ScoreMaps": ...

    def __getitem__(self, index: int | slice) -> "dict[Label, float] | ScoreMaps":
        """Map of a sample, or the maps of several."""
        if isinstance(index, slice):
            return ScoreMaps(self.labels, self.scores[index])
        return dict(zip(self.labels, self.scores[index].tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        """True if the other one is a sequence of equal maps."""
        return isinstance(other, ScoreMaps | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as that of lists

    def __repr__(self) -> str:
        """As the list of maps."""
        return repr(list(self))
