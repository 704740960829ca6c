"""Symbols and parameters as MXNet writes them, made by hand."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.model.load import load
from app.engine.model.mxnet.params_file import V1, V2, V3
from app.engine.report.onnx import export
from app.engine.runtime import oracle

Array = np.ndarray[Any, Any]
FLAGS = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7}


class Symbols:
    """A symbol under construction; a node is its index, or (index, output)."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def var(self, name: str, **attributes: str) -> int:
        return self._append("null", name, (), {f"__{k}__": v for k, v in attributes.items()})

    def add(
        self, op: str, name: str, *inputs: Any, subgraphs: list[Any] | None = None, **attributes: Any
    ) -> int:
        index = self._append(op, name, inputs, {k: str(v) for k, v in attributes.items()})
        if subgraphs:
            self.nodes[index]["subgraphs"] = subgraphs
        return index

    def _append(self, op: str, name: str, inputs: Any, attributes: dict[str, str]) -> int:
        entries = [[*(i if isinstance(i, tuple) else (i, 0)), 0] for i in inputs]
        self.nodes.append({"op": op, "name": name, "attrs": attributes, "inputs": entries})
        return len(self.nodes) - 1

    def json(self, *heads: Any) -> dict[str, Any]:
        entries = [[*(h if isinstance(h, tuple) else (h, 0)), 0] for h in heads or (len(self.nodes) - 1,)]
        variables = [i for i, n in enumerate(self.nodes) if n["op"] == "null"]
        return {
            "nodes": self.nodes,
            "arg_nodes": variables,
            "heads": entries,
            "attrs": {"mxnet_version": ["int", 10901]},
        }

    def save(self, folder: Path, *heads: Any, name: str = "net") -> Path:
        path = folder / f"{name}-symbol.json"
        path.write_text(json.dumps(self.json(*heads)))
        return path


def packed(array: Array, magic: int | None = V2) -> bytes:
    """A dense array; None is the oldest format."""
    rank, dims = struct.pack("<i", array.ndim), struct.pack(f"<{array.ndim}q", *array.shape)
    head = {
        None: rank + struct.pack(f"<{array.ndim}I", *array.shape),
        V1: struct.pack("<I", V1) + rank + dims,
        V2: struct.pack("<Ii", V2, 0) + rank + dims,
        V3: struct.pack("<Ii", V3, 0) + rank + dims,
    }[magic]
    return head + struct.pack("<iii", 1, 0, FLAGS[array.dtype.name]) + array.tobytes()


def listed(arrays: Mapping[str, bytes]) -> bytes:
    """A file of arrays by name."""
    names = [name.encode() for name in arrays]
    head = struct.pack("<QQQ", 0x112, 0, len(arrays))
    tail = struct.pack("<Q", len(names)) + b"".join(struct.pack("<Q", len(n)) + n for n in names)
    return head + b"".join(arrays.values()) + tail


def params(folder: Path, arrays: Mapping[str, Array], name: str = "net") -> Path:
    path = folder / f"{name}-0000.params"
    path.write_bytes(listed({f"arg:{k}": packed(v) for k, v in arrays.items()}))
    return path


def loaded(folder: Path, symbol: Symbols, *heads: Any, **weights: Array) -> ir.Model:
    path = symbol.save(folder, *heads)
    return load(path, external={"net-0000.params": params(folder, weights)} if weights else {}).model


def run(
    folder: Path, symbol: Symbols, inputs: Mapping[str, Array], *heads: Any, **weights: Array
) -> list[Array]:
    """Outputs of a symbol by onnxruntime, which shares nothing with the reader."""
    export(loaded(folder, symbol, *heads, **weights), folder / "net.onnx")
    found = oracle.runtime(folder / "net.onnx", threads=1, optimized=False)(inputs)
    return [np.asarray(v) for v in found.values()]


def network() -> Symbols:
    s = Symbols()
    x = s.add("Convolution", "c", s.var("data"), s.var("w"), kernel="(3, 3)", num_filter=4, no_bias=True)
    x = s.add("Pooling", "p", s.add("Activation", "a", x, act_type="relu"), global_pool=True, pool_type="avg")
    x = s.add("FullyConnected", "f", x, s.var("v"), s.var("b"), num_hidden=5)
    s.add("SoftmaxOutput", "softmax", x, s.var("softmax_label"))
    return s


def written(folder: Path) -> tuple[Path, Path]:
    random = np.random.default_rng(1)
    shapes = {"w": (4, 3, 3, 3), "v": (5, 4), "b": (5,)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return network().save(folder), params(folder, arrays)
