"""MobileNetV2 of width 0.35 for images of 144 x 144, as for microcontrollers, with random weights.

Source: Sandler et al., MobileNetV2 (arXiv 1801.04381), table 2; channels are multiples of 8 and at least 0.9 of
the scaled ones.
"""

import onnx

from tests.engine.export.test_library import model

WIDTH, SIZE = 0.35, 144
# Expansion, channels, repetitions and first stride of the blocks.
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def scaled(channels: int) -> int:
    """Channels at this width."""
    wanted = channels * WIDTH
    found = max(8, int(wanted + 4) // 8 * 8)
    return found + 8 if found < 0.9 * wanted else found


def mobilenet_v2(size: int = SIZE) -> onnx.ModelProto:
    """The network; its input is x, its output the 1,000 logits y."""
    weights: list[str] = []
    nodes = ["low = Constant <value_float = 0.0> ()", "high = Constant <value_float = 6.0> ()"]

    def conv(x: str, ins: int, outs: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        n = len(weights)
        weights.append(f"float[{outs},{ins // groups},{kernel},{kernel}] w{n}, float[{outs}] b{n}")
        pads = ", ".join([str(kernel // 2)] * 4)
        nodes.append(
            f"c{n} = Conv <pads: ints = [{pads}], strides: ints = [{stride}, {stride}], group = {groups}> "
            f"({x}, w{n}, b{n})"
        )
        return f"c{n}"

    def relu6(x: str) -> str:
        nodes.append(f"r{x} = Clip ({x}, low, high)")
        return f"r{x}"

    x, channels = relu6(conv("x", 3, scaled(32), 3, 2)), scaled(32)
    for expansion, wide, count, first in BLOCKS:
        for i in range(count):
            inner, outs, stride = channels * expansion, scaled(wide), first if i == 0 else 1
            y = relu6(conv(x, channels, inner, 1)) if expansion > 1 else x
            y = conv(relu6(conv(y, inner, inner, 3, stride, inner)), inner, outs, 1)
            if stride == 1 and channels == outs:
                nodes.append(f"s{y} = Add ({x}, {y})")
                y = f"s{y}"
            x, channels = y, outs
    x = relu6(conv(x, channels, 1280, 1))
    weights.append("float[1280,1000] v, float[1000] c")
    nodes += [f"p = GlobalAveragePool ({x})", "f = Flatten (p)", "y = Gemm (f, v, c)"]
    return model(
        f'<ir_version: 10, opset_import: ["" : 21]>\nnet (float[1,3,{size},{size}] x) => (float[1,1000] y)\n'
        f"<{', '.join(weights)}>\n{{\n" + "\n".join(nodes) + "\n}"
    )
