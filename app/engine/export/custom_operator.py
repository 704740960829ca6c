"""A library as one operator of onnxruntime: a graph of that operator, for sessions that register the library.

`app/kernels/library/custom_operator.c` is the other side.
"""

from collections.abc import Mapping
from typing import IO, Any

import onnx_ir as ir

from app.engine.export.examples import graph_name
from app.engine.export.library import Library
from app.engine.export.package import Content, archive_name, read_me, write_archive
from app.engine.report.onnx import proto_of

OPERATOR = "CompiledModel"
IR_VERSION, OPSET = 8, 17  # which the oldest onnxruntime that the library takes knows
READ_ME = """{name}: a model that Stowplan compiled for {processor}, {threads} thread(s), for onnxruntime

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library("model.so")
    session = onnxruntime.InferenceSession("{graph}", options)

Sessions in C, C# and Java register the library by the same name. onnxruntime 1.16 or newer, Linux.
Options of a session, set before the library is registered: "stowplan.threads" (0: the plan's),
"stowplan.copy_weights" (1: to huge pages; 0: where they are mapped), "stowplan.affinity" (0: threads
stay where the system puts them).

inputs
{inputs}
outputs
{outputs}

metadata.json describes the model, manifest.json has the SHA-256 of every file.
"""


def graph(library: Library) -> bytes:
    """An ONNX file of one node with the model's inputs and outputs; equal libraries give equal bytes."""
    told = library.metadata
    inputs = [_value(v) for v in _listed(told, "inputs")]
    outputs = [_value(v) for v in _listed(told, "outputs")]
    given = {v.name: v for v in inputs}
    node = ir.Node(str(told["domain"]), OPERATOR, inputs, outputs=outputs, name=str(told["name"]))
    # An output that is an input has its name: the graph hands the input through.
    results = [given.get(v.name, v) for v in outputs]
    for value in outputs:
        if value.name in given:
            value.name = f"{value.name}/computed"
    imports = {"": OPSET, str(told["domain"]): 1}
    made = ir.Graph(inputs, results, nodes=[node], opset_imports=imports, name=str(told["name"]))
    proto = proto_of(ir.Model(made, ir_version=IR_VERSION))
    return bytes(proto.SerializeToString(deterministic=True))


def operator_archive(library: Library, into: IO[bytes]) -> None:
    """Write a `.tar.gz` with the graph, the library and what describes them."""
    name = graph_name(library.metadata)
    files: dict[str, Content] = {
        name: [graph(library)],
        "model.so": library.shared.parts,
        "README": [read_me(READ_ME, library.metadata, graph=name).encode()],
    }
    write_archive(f"{archive_name(library.metadata)}-ort", files, library.metadata, into)


def _listed(told: Mapping[str, object], kind: str) -> list[dict[str, Any]]:
    found = told[kind]
    assert isinstance(found, list)
    return found


def _value(told: Mapping[str, Any]) -> ir.Value:
    kind = ir.TensorType(ir.DataType[str(told["dtype"]).upper()])
    shape: list[int | str] = list(told["shape"])
    if "prefix_axis" in told:
        shape[told["prefix_axis"]] = f"{told['name']}_{told['prefix_axis']}"
    return ir.Value(name=told["name"], shape=ir.Shape(shape), type=kind)
