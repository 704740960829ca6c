"""OpenVINO as a backend: sub-graphs run by its CPU plugin, in float32, for latency.

Inputs and outputs are tensors over our memory: nothing is copied at the border.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.libraries import subgraph
from app.engine.core import graph
from app.engine.core.registry import PlanningContext

Array = np.ndarray[Any, Any]
CALL_SECONDS = 15e-6  # of a bound call of an almost empty model, measured


class _Request:
    def __init__(self, compiled: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._request = compiled.create_infer_request()
        self._inputs = [_place(compiled.inputs, name) for name in inputs]
        self._outputs = [_place(compiled.outputs, name) for name in outputs]

    def __call__(self, values: Sequence[object]) -> Sequence[object]:
        import openvino

        for place, value in zip(self._inputs, values, strict=True):
            if place is not None:
                self._request.set_input_tensor(place, openvino.Tensor(np.ascontiguousarray(value)))
        self._request.infer()
        return [self._request.get_output_tensor(place).data.copy() for place in self._outputs]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """A run that reads and writes these arrays."""
        import openvino

        for place, array in zip(self._inputs, inputs, strict=True):
            if place is not None:
                self._request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))
        for place, array in zip(self._outputs, outputs, strict=True):
            self._request.set_output_tensor(place, openvino.Tensor(array, shared_memory=True))
        return lambda: self._request.infer(share_outputs=True)


def _place(ports: Sequence[Any], name: str) -> int | None:
    """The number of the port of that name; None for an input that nothing reads."""
    return next((i for i, port in enumerate(ports) if name in port.names), None)


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def prepare(model: bytes, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> _Request:
    """See `app.engine.backends.libraries.subgraph.Prepare`."""
    core = _core()
    compiled = core.compile_model(
        core.read_model(model),
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    return _Request(compiled, inputs, outputs)


SMALL = 4096  # elements of a constant that an operator is tried with; larger ones are inputs then
_tried: dict[tuple[str, str, int | None], str | None] = {}


def _rejection(node: ir.Node, _context: PlanningContext) -> str | None:
    """Rejection of an operator that its frontend cannot read, tried once with the first node that has it."""
    key = node.domain, node.op_type, graph.owner(node).opset_imports.get(node.domain)
    if key not in _tried:
        small = [v for v in graph.reads(node) if graph.is_constant(v) and graph.elements(v) <= SMALL]
        alone = graph.group((node,), node, node.op_type, lambda value: bool(value.name))
        try:
            _core().read_model(ir.to_proto(subgraph.model_of(alone, small)).SerializeToString())
        except Exception as cause:  # it raises types of its own, and any of them rejects the sub-graph
            lines = [line for line in str(cause).splitlines() if node.op_type in line]
            _tried[key] = f"openvino cannot read {node.op_type}: {' '.join(lines[:1])[:200] or 'refused'}"
        else:
            _tried[key] = None
    return _tried[key]


ROWS = subgraph.backend(
    "openvino",
    "openvino",
    f"{__name__}:prepare",
    node_rejection=_rejection,
    call_seconds=CALL_SECONDS,
    extra="openvino",
)
BACKENDS = ROWS[:1]
IMPLEMENTATIONS = ROWS[1:]
