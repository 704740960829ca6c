"""Errors of the engine, with stable codes.

A code names the failure for programs, the message for people: which thing, what was
expected, what was found, and the way out. HTTP status codes live in `app.api.http.errors`.
"""


class CodedError(Exception):
    """A failure that answers a request: a subclass names its `code` as a keyword.

    Args:
        message: for people.
        pointer: to the part of the request or graph at fault; empty when the whole is.
        code: of a failure that was found elsewhere, in place of the class's own.
    """

    code = "error"

    def __init_subclass__(cls, *, code: str = "") -> None:
        cls.code = code or cls.code

    def __init__(self, message: str, *, pointer: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        if code:
            self.code = code


class EngineError(CodedError, code="engine-error"):
    """A failure with a stable `code`, and a `pointer` to the part of the request or graph at fault.

    `pointer` is a JSON pointer into the request (`/input_shapes/x`) or a node or value name
    (`node:conv1`, `value:x`); empty when the whole is at fault.
    """


class GraphError(EngineError, code="graph-invalid"):
    """The user's model cannot be used as it is."""


class NotOnnxError(GraphError, code="not-onnx"):
    """The bytes are no ONNX model, or were cut short."""


class ModelTooLargeError(GraphError, code="model-too-large"):
    """The model exceeds a limit on bytes, nodes or tensor elements."""


class CyclicGraphError(GraphError, code="graph-cyclic"):
    """A node depends on its own output."""


class UnknownOperatorError(GraphError, code="operator-unknown"):
    """An operator that no backend knows."""


class OpsetError(GraphError, code="opset-unsupported"):
    """An opset newer than this version of the engine knows."""


class SymbolError(GraphError, code="symbol-unsupported"):
    """Nodes that MXNet has no spelling of."""


class RegionError(EngineError, code="region-not-planned"):
    """No one program serves all shapes of a region, or the region is spelled for no input of the model."""


class ExportError(EngineError, code="not-exportable"):
    """A program that cannot run outside this package."""


class DtypeError(GraphError, code="dtype-unsupported"):
    """A data type that nothing here can store or compute."""


class NotDifferentiableError(GraphError, code="not-differentiable"):
    """The loss depends on the variables through operators without a gradient."""


class ExternalDataError(GraphError, code="external-data-invalid"):
    """External data that is absent, or named by a path that leaves the model's folder."""


class InputError(EngineError, code="input-invalid"):
    """A shape, value or tensor given for an input is missing or does not fit the model."""


class StorageBoundError(InputError, code="storage-bound-exceeded"):
    """A run in which a value stores more than the job declares of it."""


class TargetError(EngineError, code="target-invalid"):
    """The description of a machine contradicts itself or names something unknown."""


class UnknownTargetError(TargetError, code="target-unknown"):
    """No target of that name."""


class UnknownBackendError(TargetError, code="backend-unknown"):
    """No backend of that name."""


class CapacityError(EngineError, code="memory-budget-exceeded"):
    """A plan needs more memory than there is."""

    def __init__(self, message: str, *, needed: int, available: int, pointer: str = "") -> None:
        super().__init__(message, pointer=pointer)
        self.needed = needed  # bytes
        self.available = available  # bytes


class KernelError(EngineError, code="kernel-failed"):
    """A kernel cannot be found, compiled or run."""


class OperandError(KernelError, code="operands-invalid"):
    """Operands of a run do not fit an operator whose parameters or sizes only the run tells."""


class LibraryError(KernelError, code="library-failed"):
    """An external library refuses a sub-graph, or fails on it."""

    def __init__(self, message: str, *, backend: str, nodes: tuple[str, ...], pointer: str = "") -> None:
        super().__init__(message, pointer=pointer)
        self.backend = backend
        self.nodes = nodes  # names


class NumericsError(EngineError, code="numerics-mismatch"):
    """The optimized graph computes something else than the original."""


class ExportMismatchError(NumericsError, code="export-mismatch"):
    """An exported graph computes something else than the original; no plan of the program changes that."""


class PassError(EngineError, code="pass-failed"):
    """An unexpected failure inside a pass: a defect of ours, named by pass and node."""

    def __init__(self, stage: str, cause: Exception, *, pointer: str = "") -> None:
        super().__init__(f"pass {stage!r} failed: {type(cause).__name__}: {cause}", pointer=pointer)
        self.stage = stage
