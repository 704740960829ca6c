"""What `stowplan serve` does, with settings that the environment cannot give; every child imports this.

With settings as its argument it is one service. Without, it forks services on request: the imports, most of
what starting one costs, happen once. Each line of its input is JSON of (settings, file of the log), each line
of its output the number of a process.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from app.settings import is_job_environment

_FORK = multiprocessing.get_context("fork")
_SPAWN = multiprocessing.get_context("spawn")


def main(settings_json: str) -> None:
    from app.jobs.supervisor import service_processes, supervise
    from app.serving.executor_processes import Executors
    from app.settings import Settings

    settings = Settings.from_json(settings_json)
    supervise(settings, service_processes(settings, "app.api.main:run"), Executors(settings))


def on_request() -> None:
    """Fork a service for each line of the input, until it ends."""
    import app.api.main
    import app.jobs.worker.worker
    import app.serving.executor_processes  # noqa: F401
    from app.jobs import supervisor

    supervisor._SPAWN = Parts()  # type: ignore[assignment]  # what the supervisor takes of a context
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # services that end leave no zombies
    for line in sys.stdin:
        settings, log = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for output in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), output)
            main(settings)
            return
        print(pid, flush=True)


class Parts:
    """In place of the context that a supervisor starts its parts with: forks those that are not confined."""

    def Process(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> Any:  # noqa: N802
        if is_job_environment():
            return _SPAWN.Process(target=target, args=args, name=name)
        return _FORK.Process(target=_forked, args=(target, args), name=name)


def _forked(target: Callable[..., None], args: tuple[Any, ...]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # which the supervisor handles
        signal.signal(number, signal.SIG_DFL)
    target(*args)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1])
    else:
        on_request()
