"""Errors of the engine, with stable codes.

A code names the failure for programs, the message for people: which thing, what was
expected, what was found, and the way out. HTTP status codes live in `app.api.http.errors`.
"""

from typing import ClassVar


class EngineError(Exception):
    """A failure with a stable `code`, and a `pointer` to the part of the request or graph at fault.

    `pointer` is a JSON pointer into the request (`/input_shapes/x`) or a node or value name
    (`node:conv1`, `value:x`); empty when the whole is at fault.
    """

    code: ClassVar[str] = "engine-error"

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer


class GraphError(EngineError):
    """The user's model cannot be used as it is."""

    code = "graph-invalid"


class NotOnnxError(GraphError):
    """The bytes are no ONNX model, or were cut short."""

    code = "not-onnx"


class ModelTooLargeError(GraphError):
    """The model exceeds a limit on bytes, nodes or tensor elements."""

    code = "model-too-large"


class CyclicGraphError(GraphError):
    """A node depends on its own output."""

    code = "graph-cyclic"


class UnknownOperatorError(GraphError):
    """An operator that no backend knows."""

    code = "operator-unknown"


class OpsetError(GraphError):
    """An opset newer than this version of the engine knows."""

    code = "opset-unsupported"


class DtypeError(GraphError):
    """A data type that nothing here can store or compute."""

    code = "dtype-unsupported"


class NotDifferentiableError(GraphError):
    """The loss depends on the variables through operators without a gradient."""

    code = "not-differentiable"


class ExternalDataError(GraphError):
    """External data that is absent, or named by a path that leaves the model's folder."""

    code = "external-data-invalid"


class InputError(EngineError):
    """A shape, value or tensor given for an input is missing or does not fit the model."""

    code = "input-invalid"


class TargetError(EngineError):
    """The description of a machine contradicts itself or names something unknown."""

    code = "target-invalid"


class UnknownTargetError(TargetError):
    """No target of that name."""

    code = "target-unknown"


class UnknownBackendError(TargetError):
    """No backend of that name."""

    code = "backend-unknown"


class CapacityError(EngineError):
    """A plan needs more memory than there is."""

    code = "memory-budget-exceeded"

    def __init__(self, message: str, *, needed: int, available: int, pointer: str = "") -> None:
        super().__init__(message, pointer=pointer)
        self.needed = needed  # bytes
        self.available = available  # bytes


class KernelError(EngineError):
    """A kernel cannot be found, compiled or run."""

    code = "kernel-failed"


class LibraryError(KernelError):
    """An external library refuses a sub-graph, or fails on it."""

    code = "library-failed"

    def __init__(self, message: str, *, backend: str, nodes: tuple[str, ...], pointer: str = "") -> None:
        super().__init__(message, pointer=pointer)
        self.backend = backend
        self.nodes = nodes  # names


class NumericsError(EngineError):
    """The optimized graph computes something else than the original."""

    code = "numerics-mismatch"


class ExportMismatchError(NumericsError):
    """An exported graph computes something else than the original; no plan of the program changes that."""

    code = "export-mismatch"


class PassError(EngineError):
    """An unexpected failure inside a pass: a defect of ours, named by pass and node."""

    code = "pass-failed"

    def __init__(self, stage: str, cause: Exception, *, pointer: str = "") -> None:
        super().__init__(f"pass {stage!r} failed: {type(cause).__name__}: {cause}", pointer=pointer)
        self.stage = stage
