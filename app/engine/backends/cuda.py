"""NVIDIA GPUs, as a model so far: costs by the roofline of the described device, no kernels."""

from app.engine import modelled
from app.engine.registry import Backend

BACKENDS = (Backend("cuda", devices=("cuda",), runs_here=False),)

IMPLEMENTATIONS = modelled.rows("cuda", ("float32", "float16", "int8", "uint8", "int32", "int64", "bool"))
