"""Small plans whose steps run on rows."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from app.engine.core.program import Program
from app.engine.entry.explain import plan
from app.engine.types.options import Options
from app.engine.types.target import find

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
BLOCK = (
    "float[1,8,N,64] x, float[32,8,1,1] w, float[32,1,3,3] d, float[8,32,1,1] p",
    """
    a = Conv(x, w)
    b = Relu(a)
    c = Conv<group = 32, pads = [1, 1, 1, 1]>(b, d)
    e = Relu(c)
    f = Conv(e, p)
    y = Add(x, f)
    s = GlobalAveragePool(y)
    """,
)


def planned(folder: Path, inputs: str, body: str, outputs: str, target: str = "cpu-avx2") -> Program:
    """The predicted plan of a graph in text whose inputs but x are constants of ones."""
    proto = onnx.parser.parse_model(f"{HEAD}g ({inputs}) => ({outputs}) {{ {body} }}")
    kept = [v for v in proto.graph.input if v.name == "x"]
    for value in proto.graph.input:
        if value.name != "x":
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            array = np.ones(shape, np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return plan(path, options=Options(autotune=False), target=find(target)).program
