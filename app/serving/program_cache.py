"""Programs of a deployed model, one for each set of input shapes, made on demand by a thread of its own.

What runs does not wait for what is being compiled.
"""

import faulthandler
import importlib
import itertools
import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from app.engine.types.errors import EngineError
from app.jobs.worker.child_request import bindings_of, options_of
from app.jobs.worker.engine_protocol import Engine, Program, ServedModel
from app.serving.executor_config import ExecutorConfig
from app.serving.oip_answers import Answer
from app.serving.oip_codec import Form

logger = logging.getLogger("stowplan.executor")
Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # by name, sorted
MOST_SHARING = 1024  # programs of one region: tables of rows and sizes, some 50 to 150 KiB each


BuildRequest = tuple[Shapes, int]  # shapes of one request, and how many are computed together


def key_of(shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Shapes as a key."""
    return tuple(sorted(shapes.items()))


@dataclass(frozen=True, slots=True)
class Built:
    """Result of one build request: the model when `request` is None, else programs, or a reason.

    Attributes:
        rows: outputs in which several requests lie one by one.
        early: no request has asked for it yet.
    """

    request: BuildRequest | None
    model: ServedModel | None = None
    programs: tuple[Program, ...] = ()
    rows: frozenset[str] = frozenset()
    rejection: str = ""
    is_fault: bool = False  # the request is not the cause
    early: bool = False


class Builder:
    """Loads the model, and then builds programs in the order of the requests.

    While there are none, it builds those that share the memory of one that is there.
    """

    def __init__(self, config: ExecutorConfig, cores: Sequence[Sequence[int]]) -> None:
        self._config = config
        self._cores = cores  # of each instance
        self._build_requests: queue.SimpleQueue[BuildRequest | None] = queue.SimpleQueue()
        self._built: queue.SimpleQueue[Built] = queue.SimpleQueue()
        self._model: ServedModel | None = None
        self._ahead: Iterator[tuple[Mapping[str, tuple[int, ...]], Sequence[Program]]] | None = None
        self._looked_ahead = False
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
            # A clock of its own ends the process when this takes too long, whatever holds it up.
            early = self._ahead is not None and self._build_requests.empty()
            request = None if early else self._build_requests.get()
            faulthandler.dump_traceback_later(self._config.build_seconds, exit=True)
            built = self._early() if early else self._build(request)
            faulthandler.cancel_dump_traceback_later()
            if built is not None:
                self._built.put(built)
                os.eventfd_write(self.ready, 1)

    def _early(self) -> Built | None:
        """A program that nobody has asked for yet, if there is another one."""
        assert self._ahead is not None
        try:
            shapes, programs = next(self._ahead)
        except StopIteration:
            self._ahead = None
        except Exception:  # a call that needs it is told
            logger.exception("programs of further shapes are made when calls come")
            self._ahead = None
        else:
            return Built((key_of(shapes), 1), programs=tuple(programs), early=True)
        return None

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
            programs = tuple(self._model.programs(shapes, self._cores))
            if programs[0].shares_memory and not self._looked_ahead:
                self._looked_ahead = True
                self._ahead = itertools.islice(self._model.ahead(), MOST_SHARING)
            return Built(request, programs=programs, rows=rows)
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
            tune=config.tune,
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
    """The programs used last: at most `most` shapes with own memory, and `MOST_SHARING` that share it.

    `drop` is told of others.
    """

    def __init__(self, most: int, drop: Callable[[Ready], None]) -> None:
        self._most = {False: most, True: MOST_SHARING}
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
        """Add programs, in place of those of their kind that were used longest ago."""
        self._kept[shapes] = Ready(programs)
        kind = programs[0].shares_memory
        alike = [key for key, ready in self._kept.items() if ready.programs[0].shares_memory == kind]
        for key in alike[: max(len(alike) - self._most[kind], 0)]:
            self._drop(self._kept.pop(key))
