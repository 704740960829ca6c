"""A compiled model: `run(x)`, or `InferenceSession()` with the interface of `onnxruntime.InferenceSession`.

This file is copied into wheels as their `__init__.py`; it needs numpy alone.
"""

import ctypes
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

COPY_WEIGHTS, NO_AFFINITY = 1, 2
_HERE = Path(__file__).parent
# onnx spells the others as numpy does, which has no bfloat16: arrays hold its bits.
_TYPES = {"float": "float32", "double": "float64", "bfloat16": "uint16"}


def _chosen() -> tuple[Path, ctypes.CDLL]:
    """Folder and library of the first processor of the module whose instructions this one has.

    Raises:
        ImportError: there is none.
    """
    names = [row["folder"] for row in json.loads((_HERE / "processors.json").read_bytes())["processors"]]
    for name in names:
        try:
            library = ctypes.CDLL(str(_HERE / name / "model.so"))
        except OSError:  # of another architecture
            continue
        if library.stowplan_check() == 0:
            return _HERE / name, library
    raise ImportError(f"this processor lacks instructions of all that {__name__} is for: {', '.join(names)}")


def _load() -> tuple[Path, ctypes.CDLL]:
    folder, library = _chosen()
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.stowplan_metadata.restype = library.stowplan_message.restype = ctypes.c_char_p
    library.stowplan_create.argtypes = [ctypes.POINTER(pointer), number, ctypes.c_uint]
    library.stowplan_run.argtypes = library.stowplan_destroy.argtypes = [pointer]
    library.stowplan_output_shape.argtypes = [pointer, number]
    library.stowplan_output_shape.restype = ctypes.POINTER(ctypes.c_int64)
    for name in ("input", "output"):
        memory = getattr(library, f"stowplan_{name}_memory")
        memory.argtypes, memory.restype = [pointer, number], pointer
    return folder, library


_FOLDER, _LIBRARY = _load()
metadata: dict[str, Any] = json.loads(_LIBRARY.stowplan_metadata())


def explain() -> str:
    """The plan, one line a step: implementation, layout, bytes and time."""
    return (_FOLDER / "plan.txt").read_text(encoding="utf-8")


class NodeArg(NamedTuple):
    """Name, shape and element type of an input or output, as onnxruntime describes it."""

    name: str
    shape: list[int | str]
    type: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "NodeArg":
        """The description of an output in the metadata; an extent that only a run tells has a name."""
        if "map_labels" in told:
            key = "string" if isinstance(told["map_labels"][0], str) else "int64"
            return cls(told["name"], [], f"seq(map({key},tensor(float)))")
        at = told.get("prefix_axis")
        shape = [f"{told['name']}_{axis}" if axis == at else n for axis, n in enumerate(told["shape"])]
        return cls(told["name"], shape, f"tensor({'string' if 'names' in told else told['dtype']})")


class InferenceSession:
    """The model in memory of its own; sessions share the weights, and one thread at a time runs each.

    Args:
        threads: of the caller and helpers; 0 and more than the plan's are the plan's own number.
        copy_weights: whether the weights are copied to huge pages, once for all sessions; else they are
            read where the library is mapped.
        affinity: whether helpers are kept off the core of the calling thread.

    Raises:
        RuntimeError: the processor lacks instructions, or the system has no memory or threads.
    """

    def __init__(self, threads: int = 0, *, copy_weights: bool = True, affinity: bool = True) -> None:
        self._handle = ctypes.c_void_p()
        flags = COPY_WEIGHTS * copy_weights | NO_AFFINITY * (not affinity)
        _check(_LIBRARY.stowplan_create(ctypes.byref(self._handle), threads, flags))
        self._lock = threading.Lock()
        self._inputs = self._views("input")
        self._outputs = self._views("output")

    def _views(self, kind: str) -> dict[str, np.ndarray[Any, Any]]:
        memory = getattr(_LIBRARY, f"stowplan_{kind}_memory")
        found = {}
        for index, told in enumerate(metadata[f"{kind}s"]):
            dtype = np.dtype(_TYPES.get(told["dtype"], told["dtype"]))
            size = int(np.prod(told["shape"], dtype=np.int64)) * dtype.itemsize
            raw = (ctypes.c_char * size).from_address(memory(self._handle, index) or 0) if size else b""
            found[told["name"]] = np.frombuffer(raw, dtype).reshape(told["shape"])
        return found

    def get_inputs(self) -> list[NodeArg]:
        """Descriptions of the inputs, in order."""
        return [NodeArg.of(told) for told in metadata["inputs"]]

    def get_outputs(self) -> list[NodeArg]:
        """Descriptions of the outputs, in order."""
        return [NodeArg.of(told) for told in metadata["outputs"]]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None
    ) -> list[Any]:
        """Outputs of one inference, copied; None asks for all. Scores with labels are lists of maps.

        Raises:
            ValueError: an input is missing, unknown, or of another shape or dtype; an output is unknown.
            RuntimeError: the instance was used by another process.
        """
        del run_options  # there is none that applies
        names = list(self._outputs) if output_names is None else list(output_names)
        unknown = [*(set(input_feed) - set(self._inputs)), *(set(names) - set(self._outputs))]
        if unknown:
            raise ValueError(f"no input or output is named {unknown[0]!r}; there are {self._names()}")
        with self._lock:
            if not self._handle:
                raise ValueError("the session is closed")
            for name, place in self._inputs.items():
                if name not in input_feed:
                    raise ValueError(f"input {name!r} is missing")
                given = np.asarray(input_feed[name])
                if given.shape != place.shape or given.dtype != place.dtype:
                    raise ValueError(
                        f"input {name!r}: expected {place.dtype}{list(place.shape)}, "
                        f"found {given.dtype}{list(given.shape)}"
                    )
                place[...] = given
            _check(_LIBRARY.stowplan_run(self._handle))
            return [self._output(name) for name in names]

    def _output(self, name: str) -> Any:
        """A copy of what the last run gave."""
        index = list(self._outputs).index(name)
        place, told = self._outputs[name], metadata["outputs"][index]
        if "map_labels" in told:
            return [dict(zip(told["map_labels"], row)) for row in place.tolist()]
        if "names" in told:
            return np.asarray(np.array(told["names"], object)[place], object)
        if "prefix_axis" not in told:
            return place.copy()
        shape = _LIBRARY.stowplan_output_shape(self._handle, index)[: place.ndim]
        return place.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape).copy()

    def _names(self) -> str:
        return f"inputs {', '.join(self._inputs)} and outputs {', '.join(self._outputs)}"

    def close(self) -> None:
        """End the threads and give the memory back."""
        with self._lock:
            handle, self._handle = self._handle, ctypes.c_void_p()
            self._inputs, self._outputs = {}, {}
            _LIBRARY.stowplan_destroy(handle)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(_LIBRARY.stowplan_message(status).decode())


_session: InferenceSession | None = None
_session_lock = threading.Lock()


def run(*inputs: Any, **named: Any) -> Any:
    """Outputs of one inference on a session that all callers share: one array, or a list of several.

    Args:
        *inputs: in the order of the model.
        **named: by name.
    """
    global _session  # made when it is first needed
    with _session_lock:
        if _session is None:
            _session = InferenceSession()
    feed = {told["name"]: value for told, value in zip(metadata["inputs"], inputs)} | named
    if len(inputs) > len(metadata["inputs"]):
        raise ValueError(f"expected at most {len(metadata['inputs'])} inputs, found {len(inputs)}")
    found = _session.run(None, feed)
    return found[0] if len(found) == 1 else found
