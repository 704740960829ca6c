"""Small float32 models with seeded weights whose activations keep their scale."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from tests.engine.canonical import saved

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 10, opset_import: ["": 21]>'

CNN = """(float[1,3,16,16] x) => (float[1,10] y) {
    a0 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w0, b0)
    a1 = Relu(a0)
    a2 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a1)
    a3 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a2, w1)
    a4 = Add(a3, a2)
    a5 = Relu(a4)
    a6 = Conv<kernel_shape = [1, 1]>(a5, w2)
    a7 = Relu(a6)
    a8 = GlobalAveragePool(a7)
    a9 = Flatten(a8)
    y = Gemm<transB = 1>(a9, w3, b3)
}"""
CNN_SHAPES = {
    "w0": (16, 3, 3, 3),
    "b0": (16,),
    "w1": (16, 16, 3, 3),
    "w2": (32, 16, 1, 1),
    "w3": (10, 32),
    "b3": (10,),
}

MLP = """(float[4,64] x) => (float[4,32] y) {
    a0 = MatMul(x, w0)
    a1 = Relu(a0)
    a2 = Gemm<transB = 1>(a1, w1, b1)
    a3 = Add(a2, x)
    a4 = Tanh(a3)
    y = MatMul(a4, w2)
}"""
MLP_SHAPES = {"w0": (64, 128), "w1": (64, 128), "b1": (64,), "w2": (64, 32)}

# Products of more than two axes, with vectors that are added.
LAYERS = """(float[2,5,32] x) => (float[2,5,24] y) {
    a0 = MatMul(x, w0)
    a1 = Add(b0, a0)
    a2 = Tanh(a1)
    a3 = MatMul(a2, w1)
    y = Add(a3, b1)
}"""
LAYERS_SHAPES = {"w0": (32, 64), "b0": (64,), "w1": (64, 24), "b1": (24,)}

SHAPES = {"cnn": (1, 3, 16, 16), "mlp": (4, 64), "layers": (2, 5, 32)}  # of inputs
TEXTS = {"cnn": (CNN, CNN_SHAPES), "mlp": (MLP, MLP_SHAPES), "layers": (LAYERS, LAYERS_SHAPES)}


def file(name: str, folder: Path, seed: int = 0) -> Path:
    """A model as a file."""
    text, shapes = TEXTS[name]
    random = np.random.default_rng(seed)
    weights = {k: drawn(random, shape) for k, shape in shapes.items()}
    return saved(f"{HEAD} {name} {text}", folder, weights)


def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Weights with the variance that keeps activations in range."""
    fan = max(int(np.prod(shape)) // max(shape[0], 1), 1)
    return (random.standard_normal(shape) * (2 / fan) ** 0.5).astype(np.float32)


def plain(name: str, folder: Path, seed: int = 0) -> ir.Model:
    """Its canonical graph, before backends rewrite it."""
    return canonical(file(name, folder, seed))


def canonical(path: Path) -> ir.Model:
    """The canonical graph of a file, before backends rewrite it."""
    found: list[ir.Model] = []
    session.canonical(
        load(path),
        host(),
        Options(),
        Bindings(),
        load_registry(),
        before_rewrites=lambda model: found.append(model.clone()),
    )
    return found[0]


def inputs(name: str, count: int, seed: int = 7) -> list[dict[str, Array]]:
    """Samples of the model's input."""
    shape = SHAPES[name]
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal(shape).astype(np.float32)} for _ in range(count)]
