"""A small accelerator that is only a model: one SRAM, a fixed set of operators, 16 lanes.

A plan for it tells what fits and what it would cost; it cannot be run, so its timings are
predicted.
"""

from app.engine.backends import modelled
from app.engine.registry import Backend

BACKENDS = (Backend("edge-npu", devices=("model",), runs_here=False),)

IMPLEMENTATIONS = modelled.rows("edge-npu", ("float32", "int8", "uint8", "int32", "int64", "bool"))
