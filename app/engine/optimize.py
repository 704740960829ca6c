"""One job from an uploaded file to its artifacts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.engine import benchmark, session, verify
from app.engine.exchange import onnx as exchange
from app.engine.exchange import report
from app.engine.execute import Executor
from app.engine.inputs import tensors
from app.engine.load import inspect as inspect_model
from app.engine.load import load
from app.engine.options import Bindings, Options
from app.engine.oracle import Oracle, original, runtime
from app.engine.pipeline import Progress, silent
from app.engine.plan import Compilation
from app.engine.program import Program
from app.engine.registry import load as load_registry
from app.engine.target import Target, host, is_host
from app.kernels.cpu.compiler import Compiler

ARTIFACTS = (
    "optimized.onnx",
    "plan.json",
    "memory.json",
    "timings.json",
    "decisions.json",
    "report.html",
    "outputs.npz",
)
