"""Programs of a deployed model, one for each set of input shapes, made on demand by a thread of its own.

What runs does not wait for what is being compiled.
"""

import faulthandler
import importlib
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from app.engine.types.errors import EngineError
from app.jobs.worker.child_request import bindings_of, options_of
from app.jobs.worker.engine_protocol import Engine, Program, ServedModel
from app.serving.executor_config import ExecutorConfig
from app.serving.oip_answers import Answer
from app.serving.oip_codec import Form

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # by name, sorted


BuildRequest = tuple[Shapes, int]  # shapes of one request, and how many are computed together


def key_of(shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Shapes as a key."""
    return tuple(sorted(shapes.items()))


@dataclass(frozen=True, slots=True)
class Built:
    """Result of one build request: the model when `request` is None, else programs, or a reason.

    Attributes:
        rows: outputs in which several requests lie one by one.
    """

    request: BuildRequest | None
    model: ServedModel | None = None
    programs: tuple[Program, ...] = ()
    rows: frozenset[str] = frozenset()
    rejection: str = ""
    is_fault: bool = False  # the request is not the cause


class Builder:
    """Loads the model, and then builds programs in the order of the requests."""

    def __init__(self, config: ExecutorConfig, cores: Sequence[Sequence[int]]) -> None:
        self._config = config
        self._cores = cores  # of each instance
        self._build_requests: queue.SimpleQueue[BuildRequest | None] = queue.SimpleQueue()
        self._built: queue.SimpleQueue[Built] = queue.SimpleQueue()
        self._model: ServedModel | None = None
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable when something was built
        self._build_requests.put(None)
        threading.Thread(target=self._run, name="builder", daemon=True).start()

    def want(self, shapes: Shapes, count: int = 1) -> None:
        """Ask for programs that compute so many requests of some shapes together."""
        self._build_requests.put((shapes, count))

    def built(self) -> list[Built]:
        """Results of builds since the last call."""
        os.eventfd_read(self.ready)
        found = []
        while not self._built.empty():
            found.append(self._built.get())
        return found

    def _run(self) -> None:
        while True:
            request = self._build_requests.get()
            # A clock of its own ends the process when this takes too long, whatever holds it up.
            faulthandler.dump_traceback_later(self._config.build_seconds, exit=True)
            built = self._build(request)
            faulthandler.cancel_dump_traceback_later()
            self._built.put(built)
            os.eventfd_write(self.ready, 1)

    def _build(self, request: BuildRequest | None) -> Built:
        try:
            if request is None:
                self._model = self._load()
                return Built(None, model=self._model)
            assert self._model is not None
            shapes, count = dict(request[0]), request[1]
            rows: frozenset[str] = frozenset()
            if count > 1:
                rows = self._model.rows_of_outputs(shapes, count)
                shapes = {name: (shape[0] * count, *shape[1:]) for name, shape in shapes.items()}
            return Built(request, programs=tuple(self._model.programs(shapes, self._cores)), rows=rows)
        except EngineError as error:
            return Built(request, rejection=error.message, is_fault=request is None)
        except MemoryError:
            most = self._config.memory_bytes
            rejection = f"the model needs more than the limit of {most} byte of memory"
        except Exception as error:  # told where the deployment is looked at; requests must not wait for ever
            rejection = f"{type(error).__name__}: {error}"
        return Built(request, rejection=rejection, is_fault=True)

    def _load(self) -> ServedModel:
        config = self._config
        engine = cast(Engine, importlib.import_module(config.engine))
        return engine.ServedModel(
            Path(config.model),
            options_of(config.options),
            bindings_of(config.bindings),
            kernels=Path(config.kernels),
            external={name: Path(path) for name, path in config.external.items()},
            weights=Path(config.weights),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Programs that compute several requests together, by instance, and outputs that have them one by one."""

    programs: tuple[Program, ...]
    rows: frozenset[str]


@dataclass(slots=True, eq=False)
class Ready:
    """Programs for requests of some shapes, one for each instance.

    Attributes:
        programs: by instance.
        batches: by number of requests that they compute together.
        answers: by instance and form of requests: answers of arrays that its program fills in every run.
        seconds: mean time that an instance runs for a request; 0 before the first.
        users: tasks that need it.
        dropped: it takes no more tasks.
    """

    programs: tuple[Program, ...]
    batches: dict[int, Batch] = field(default_factory=dict)
    answers: tuple[dict[Form, Answer], ...] = ()
    seconds: float = 0.0
    users: int = 0
    dropped: bool = False

    def __post_init__(self) -> None:
        """Begin without answers."""
        self.answers = tuple({} for _ in self.programs)

    def close_unused(self) -> None:
        """End the programs once they are dropped and no task needs them."""
        if self.dropped and not self.users:
            for programs in (self.programs, *(batch.programs for batch in self.batches.values())):
                for program in programs:
                    program.close()


class Programs:
    """The programs used last, at most `most` shapes; `drop` is told of others."""

    def __init__(self, most: int, drop: Callable[[Ready], None]) -> None:
        self._most = most
        self._drop = drop
        self._kept: OrderedDict[Shapes, Ready] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, shapes: Shapes) -> Ready | None:
        """Programs for some shapes; they count as used now."""
        ready = self._kept.get(shapes)
        if ready is not None:
            self._kept.move_to_end(shapes)
        return ready

    def keep(self, shapes: Shapes, programs: tuple[Program, ...]) -> None:
        """Add programs, in place of those that were used longest ago."""
        self._kept[shapes] = Ready(programs)
        while len(self._kept) > self._most:
            self._drop(self._kept.popitem(last=False)[1])
