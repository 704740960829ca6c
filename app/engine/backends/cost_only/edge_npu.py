"""A small accelerator that is only a model: one SRAM, a fixed set of operators, 16 lanes.

It multiplies 8-bit integers, but knows no zero points: those of activations become corrections. The host
decides which body of control flow runs, and how often; the body runs on the device.

A plan for it tells what fits and what it would cost; it cannot be run, so its timings are
predicted.
"""

from app.engine.backends.control_flow import branches, loops
from app.engine.backends.cost_only import rows
from app.engine.core.registry import Backend
from app.engine.core.rewriter import RewriteRule
from app.engine.rewrites.quantization import integer_rows, zero_point_apart

BACKENDS = (Backend("edge-npu", devices=("model",), runs_here=False),)

PRODUCTS = ("ConvInteger", "MatMulInteger")

IMPLEMENTATIONS = (
    *rows.rows("edge-npu", ("float32", "int8", "uint8", "int32", "int64", "bool"), PRODUCTS),
    *branches.rows("edge-npu", "edge-npu."),
    *loops.rows("edge-npu", "edge-npu."),
)

REWRITES = (
    *integer_rows("edge-npu"),
    RewriteRule(zero_point_apart, PRODUCTS, nested=False, backends=("edge-npu",)),
)
