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
from collections.abc import Iterator, Mapping
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
MOST_SHARING = 1024  # programs of one region: tables of rows and sizes, some 300 KiB each for 100 steps


def key_of(shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Shapes as a key."""
    return tuple(sorted(shapes.items()))


@dataclass(frozen=True, slots=True)
class Built:
    """Result of one build request: the model itself when `shapes` is None, else a program, else a reason."""

    shapes: Shapes | None
    model: ServedModel | None = None
    program: Program | None = None
    rejection: str = ""
    is_fault: bool = False  # the request is not the cause


class Builder:
    """Loads the model, and then builds programs in the order of the requests.

    While there are none, it builds those that share the memory of one that is there.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        self._config = config
        self._build_requests: queue.SimpleQueue[Shapes | None] = queue.SimpleQueue()
        self._built: queue.SimpleQueue[Built] = queue.SimpleQueue()
        self._model: ServedModel | None = None
        self._ahead: Iterator[tuple[Mapping[str, tuple[int, ...]], Program]] | None = None
        self._looked_ahead = False
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable when something was built
        self._build_requests.put(None)
        threading.Thread(target=self._run, name="builder", daemon=True).start()

    def want(self, shapes: Shapes) -> None:
        """Ask for a program."""
        self._build_requests.put(shapes)

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
            shapes = None if early else self._build_requests.get()
            faulthandler.dump_traceback_later(self._config.build_seconds, exit=True)
            built = self._early() if early else self._build(shapes)
            faulthandler.cancel_dump_traceback_later()
            if built is not None:
                self._built.put(built)
                os.eventfd_write(self.ready, 1)

    def _early(self) -> Built | None:
        """A program that nobody has asked for yet, if there is another one."""
        assert self._ahead is not None
        try:
            shapes, program = next(self._ahead)
        except StopIteration:
            self._ahead = None
        except Exception:  # a call that needs it is told
            logger.exception("programs of further shapes are made when calls come")
            self._ahead = None
        else:
            return Built(key_of(shapes), program=program)
        return None

    def _build(self, shapes: Shapes | None) -> Built:
        try:
            if shapes is None:
                self._model = self._load()
                return Built(None, model=self._model)
            assert self._model is not None
            program = self._model.program(dict(shapes))
            if program.shares_memory and not self._looked_ahead:
                self._looked_ahead = True
                self._ahead = itertools.islice(self._model.ahead(), MOST_SHARING)
            return Built(shapes, program=program)
        except EngineError as error:
            return Built(shapes, rejection=error.message, is_fault=shapes is None)
        except MemoryError:
            most = self._config.memory_bytes
            rejection = f"the model needs more than the limit of {most} byte of memory"
        except Exception as error:  # told where the deployment is looked at; requests must not wait for ever
            rejection = f"{type(error).__name__}: {error}"
        return Built(shapes, rejection=rejection, is_fault=True)

    def _load(self) -> ServedModel:
        config = self._config
        engine = cast(Engine, importlib.import_module(config.engine))
        return engine.ServedModel(
            Path(config.model),
            options_of(config.options),
            bindings_of(config.bindings),
            kernels=Path(config.kernels),
            external={name: Path(path) for name, path in config.external.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A program, and answers of arrays that it fills in every run, by the form of the requests."""

    program: Program
    answers: dict[Form, Answer] = field(default_factory=dict)


class Programs:
    """The programs used last: at most `most` with memory of their own, and `MOST_SHARING` that share it."""

    def __init__(self, most: int) -> None:
        self._most = {False: most, True: MOST_SHARING}
        self._kept: OrderedDict[Shapes, Ready] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, shapes: Shapes) -> Ready | None:
        """A program; it counts as used now."""
        ready = self._kept.get(shapes)
        if ready is not None:
            self._kept.move_to_end(shapes)
        return ready

    def keep(self, shapes: Shapes, program: Program) -> None:
        """Add a program, in place of the one of its kind that was used longest ago."""
        self._kept[shapes] = Ready(program)
        kind = program.shares_memory
        alike = [key for key, ready in self._kept.items() if ready.program.shares_memory == kind]
        for key in alike[: max(len(alike) - self._most[kind], 0)]:
            self._kept.pop(key).program.close()
