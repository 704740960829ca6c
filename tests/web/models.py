"""Models to look at."""

import numpy as np
from onnx import parser


def _weights(*shape: int) -> str:
    values = np.random.default_rng(0).normal(size=shape).ravel() * 0.1
    return f"{{{', '.join(f'{v:.4f}' for v in values)}}}"


SMALL = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
a_small_net (float[1, 3, 16, 16] image) => (float[1, 8] scores)
<float[8, 3, 3, 3] w1 = {_weights(8, 3, 3, 3)}, float[8, 8, 3, 3] w2 = {_weights(8, 8, 3, 3)}> {{
  a = Conv<pads = [1, 1, 1, 1]>(image, w1)
  b = Relu(a)
  c = Conv<pads = [1, 1, 1, 1]>(b, w2)
  d = Add(c, b)
  e = Sigmoid(d)
  f = Mul(d, e)
  g = GlobalAveragePool(f)
  scores = Flatten(g)
}}""").SerializeToString()


FREE = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
a_free_net (float[n, m] x) => (float[n, m] y) { y = Relu(x) }""").SerializeToString()


def chain(nodes: int) -> bytes:
    """A graph of so many nodes, in which every tenth reads what is six before it too."""
    unary = ("Relu", "Sigmoid", "Tanh", "Abs", "Neg")
    lines, names = [], ["x"]
    for i in range(nodes - 1):
        if i % 10 == 9:
            lines.append(f"v{i} = Add({names[-1]}, {names[-6]})")
        elif i % 7 == 3:
            lines.append(f"v{i} = Conv<pads = [1, 1, 1, 1]>({names[-1]}, w)")
        else:
            lines.append(f"v{i} = {unary[i % 5]}({names[-1]})")
        names.append(f"v{i}")
    lines.append(f"y = Relu({names[-1]})")
    text = f"""<ir_version: 8, opset_import: ["": 17]>
long (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) <float[8, 8, 3, 3] w = {_weights(8, 8, 3, 3)}> {{
{chr(10).join(lines)} }}"""
    return bytes(parser.parse_model(text).SerializeToString())
