"""ONNX Runtime as a backend: sub-graphs run by its CPU execution provider.

Inputs and outputs are bound to our memory: nothing is copied at the border.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from app.engine.backends.libraries import subgraph
from app.engine.core.registry import PlanningContext
from app.engine.types.saturation import saturated

Array = np.ndarray[Any, Any]
CALL_SECONDS = 5e-6  # of a bound call of an almost empty model, measured


class _Session:
    def __init__(self, session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._session = session
        self._inputs = inputs
        self._outputs = list(outputs)

    def __call__(self, values: Sequence[object]) -> Sequence[object]:
        found: Sequence[object] = self._session.run(self._outputs, dict(zip(self._inputs, values)))
        return found

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """A run that reads and writes these arrays."""
        binding = self._session.io_binding()
        for name, array in zip(self._inputs, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in zip(self._outputs, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return lambda: self._session.run_with_iobinding(binding)


def prepare(model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> _Session:
    """See `app.engine.backends.libraries.subgraph.Prepare`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Else its threads look for work for tens of milliseconds after a run, on the cores of what follows.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return _Session(
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]), inputs, outputs
    )


@functools.cache
def kernels() -> Mapping[tuple[str, str], tuple[tuple[int, int], ...]]:
    """Opset versions, by domain and operator, that the CPU provider has a kernel for."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in state.get_all_opkernel_def():
        if row.provider == "CPUExecutionProvider":
            found.setdefault((row.domain, row.op_name), []).append(tuple(row.version_range))
    return {name: tuple(ranges) for name, ranges in found.items()}


@functools.cache
def _has_body(domain: str, op: str) -> bool:
    """True if an operator is a function of others, which replace it where there is no kernel."""
    try:
        schema = onnx.defs.get_schema(op, domain=domain)
    except onnx.defs.SchemaError:
        return False
    # The stubs of the package lack both.
    return bool(getattr(schema, "has_function") or getattr(schema, "has_context_dependent_function"))  # noqa: B009


def _rejection(node: ir.Node, context: PlanningContext) -> str | None:
    reason = saturated((node.op_type,), context.target)
    if reason is not None:
        return reason
    domain = "" if node.domain == "ai.onnx" else node.domain
    if (domain, node.op_type) in kernels() or _has_body(domain, node.op_type):
        return None
    return f"onnxruntime {ROWS[1].version} has no CPU kernel for {node.op_type}"


ROWS = subgraph.backend(
    "onnxruntime",
    "onnxruntime",
    f"{__name__}:prepare",
    node_rejection=_rejection,
    call_seconds=CALL_SECONDS,
    extra="onnxruntime",
)
BACKENDS = ROWS[:1]
IMPLEMENTATIONS = ROWS[1:]
