"""Two accelerators as data sheets would tell of them: their JSON and nothing else."""

from typing import Any

from app.api.schemas.targets import TargetSpec
from app.engine.types.target import Target

DRAM = {"name": "dram", "size": 2**30, "alignment": 64, "bandwidth": 12e9}

_LAST = {"layouts": ["NHWC"], "multiple": 32}


def _requantized(*between: str) -> list[dict[str, Any]]:
    """A product whose sums are scaled, and quantized after one operator between, or none."""
    nodes = [
        {"op": "ConvInteger", "inputs": ["x", "w", "z?", "v?"], "outputs": ["sums"]},
        {"op": "Cast", "inputs": ["sums"], "outputs": ["real"]},
        {"op": "Mul", "inputs": ["real", "scale"], "outputs": ["scaled"]},
        {"op": "Add", "inputs": ["scaled", "bias"], "outputs": ["moved"]},
        *({"op": op, "inputs": ["moved"], "outputs": ["limited"]} for op in between),
    ]
    last = nodes[-1]["outputs"][0]
    return [*nodes, {"op": "QuantizeLinear", "inputs": [last, "step", "zero?"], "outputs": ["y"]}]


# Multiplies int8 images with channels last, in 32s; sums, scales and quantizes in one step.
TENSOR32: dict[str, Any] = {
    "name": "tensor32",
    "device": "model",
    "cores": 1,
    "memories": [DRAM],
    "backends": ["accelerator", "numba-cpu", "reference"],
    "precisions": ["f32", "int8"],
    "accelerator": {
        "cost": {"macs_per_second": 2e12, "bytes_per_second": 12e9, "fixed_us": 4},
        "conversion": {"bytes_per_second": 6e9, "fixed_us": 2},
        "rows": [
            *(
                {
                    "name": name,
                    "pattern": _requantized(*between),
                    "dtypes": ["int8", "uint8", "float32", "int32"],
                    "operands": {
                        "x": {**_LAST, "dtypes": ["int8", "uint8"]},
                        "w": {"constant": True, "dtypes": ["int8"]},
                        "scale": {"constant": True},
                        "bias": {"constant": True},
                        "y": {**_LAST, "dtypes": ["int8", "uint8"]},
                    },
                    "leaves": "zero",
                    "limits": {"kernel": 7, "stride": 2, "zero_points": False, "tile": [64, 64, 64]},
                }
                for name, between in (("conv_requantize", ("Relu|Clip",)), ("conv_quantize", ()))
            ),
            {
                "name": "sum_quantize",
                "pattern": [
                    {"op": "DequantizeLinear", "inputs": ["a", "sa", "za?"], "outputs": ["ra"]},
                    {"op": "DequantizeLinear", "inputs": ["b", "sb", "zb?"], "outputs": ["rb"]},
                    {"op": "Add", "inputs": ["ra", "rb"], "outputs": ["sum"]},
                    {"op": "QuantizeLinear", "inputs": ["sum", "s", "z?"], "outputs": ["y"]},
                ],
                "dtypes": ["uint8", "float32"],
                "operands": {
                    "a": {**_LAST, "dtypes": ["uint8"]},
                    "b": {**_LAST, "dtypes": ["uint8"]},
                    "y": {**_LAST, "dtypes": ["uint8"]},
                },
            },
            {
                "name": "pool",
                "ops": ["MaxPool"],
                "dtypes": ["int8", "uint8"],
                "operands": {"in": _LAST, "out": _LAST},
                "reads": "any",
                "leaves": "zero",
                "limits": {"kernel": 3, "attributes": {"ceil_mode": [0]}},
            },
            {
                "name": "add",
                "ops": ["Add", "Relu"],
                "dtypes": ["int8"],
                "operands": {"in": _LAST, "out": _LAST},
                "inplace": [["in0", "out0"]],
            },
        ],
    },
}

_BLOCKED = {"layouts": ["NCHW16c"]}
_ROWS = {"layouts": ["AB16b", "ABC16c"]}

# Works on images in blocks of 16 channels; weights are brought to an SRAM before each step.
BLOCK16: dict[str, Any] = {
    "name": "block16",
    "device": "model",
    "memories": [DRAM, {"name": "sram", "size": 96 * 1024, "alignment": 32, "bandwidth": 50e9}],
    "backends": ["accelerator", "reference"],
    "accelerator": {
        "cost": {"macs_per_second": 0.5e12, "bytes_per_second": 12e9, "fixed_us": 1},
        "rows": [
            {
                "name": "conv",
                "ops": ["Conv"],
                "epilogue": ["Relu", "Clip", "Add"],
                "operands": {
                    "in": _BLOCKED,
                    "out": _BLOCKED,
                    "weights": {"memory": "sram"},
                    "in1": {"layouts": ["OIHW16i16o"], "memory": "sram", "constant": True},
                },
                "leaves": "zero",
                "limits": {"kernel": 5, "depthwise": False, "attributes": {"group": [1]}},
            },
            {
                "name": "depthwise",
                "ops": ["Conv"],
                "epilogue": ["Clip"],
                "operands": {
                    "in": _BLOCKED,
                    "out": _BLOCKED,
                    "weights": {"memory": "sram"},
                    "in1": {"layouts": ["OIHW16o"], "memory": "sram", "constant": True},
                },
                "reads": "any",
                "leaves": "zero",
                "limits": {"kernel": 3, "depthwise": True},
            },
            {
                "name": "pool",
                "ops": ["MaxPool", "GlobalAveragePool"],
                "operands": {"in": _BLOCKED, "out": _BLOCKED},
                "reads": "any",
                "leaves": "zero",
            },
            {
                "name": "product",
                "ops": ["MatMul", "Gemm"],
                "operands": {"in": _ROWS, "out": _ROWS, "weights": {"memory": "sram"}},
            },
            {
                "name": "add",
                "ops": ["Elementwise"],
                "epilogue": ["Elementwise"],
                "operands": {
                    "in": {"layouts": ["AB16b", "ABC16c", "NCHW16c"]},
                    "out": {"layouts": ["AB16b", "ABC16c", "NCHW16c"]},
                },
                "reads": "any",
                "leaves": "f(0)",
                "inplace": [["in0", "out0"]],
            },
        ],
    },
}


def target_from(spec: dict[str, Any]) -> Target:
    """The target that a client describes with this JSON."""
    return TargetSpec.model_validate(spec).to_target()
