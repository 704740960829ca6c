"""Imported ahead by a process that forks others: what the first job of a process spends a second on.

Tables, kernels and templates are loaded, and the compiler builds its own tables by compiling nothing of
importance. No thread is started, no GPU is asked and no model is seen.

`prepare` does in a process of its own what the first job of a machine would spend seconds on.
"""

import gc
import importlib
import pkgutil
from pathlib import Path

import numba
import numpy.ma  # noqa: F401  that `median` asks for
import onnx.reference.ops  # noqa: F401  that the first node asks for
import onnx_shape_inference  # noqa: F401

from app.engine.core import registry
from app.engine.report import pages
from app.engine.types.target import host
from app.kernels import cpu
from app.kernels.cpu.runtime import peak
from app.kernels.cpu.runtime.compiler import Compiler


def _preload() -> None:
    registry.load()
    for module in pkgutil.walk_packages(cpu.__path__, f"{cpu.__name__}."):
        importlib.import_module(module.name)
    numba.cfunc("void(int64)", error_model="numpy", boundscheck=False)(lambda _: None)
    pages.compile_templates()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page otherwise


def prepare(kernels: Path) -> None:
    """Compile what jobs of any model need, where a folder of compiled kernels lacks it.

    That is the methods that plan memory, the driver, and the kernel that measures the peak of the machine.
    """
    compiler = Compiler(kernels)
    from app.engine.memory import compiled  # its functions are cached where the compiler's folder is

    compiled.load()
    compiler.compile_driver()
    peak.compiled(compiler, host().vector_lanes)


_preload()
