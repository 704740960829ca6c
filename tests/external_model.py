"""A model whose weights lie in a file of their own."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, parser


def with_external_data(location: str, offset: int = 0) -> bytes:
    """y = x + w; `w` has four numbers at an offset of the file at `location`."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    external (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }""")
    weights = model.graph.initializer[0]
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    return model.SerializeToString()


def write(folder: Path, location: str = "weights.bin") -> Path:
    """Write the model and its data into a folder."""
    place = folder / location
    place.parent.mkdir(parents=True, exist_ok=True)
    np.arange(4, dtype=np.float32).tofile(place)
    (folder / "external.onnx").write_bytes(with_external_data(location))
    return folder / "external.onnx"
