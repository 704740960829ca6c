"""`stowplan jobs`, `models` and `targets`: look at what a service has, and change it."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from app.cli import service
from app.cli.submit import beside
from app.client import Client, Job, Json

Arguments = Sequence[tuple[str, dict[str, Any]]]  # names or flags, with the keywords of `add_argument`
_STATES = ("queued", "waiting_for_target", "running", "succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a command."""

    name: str
    summary: str
    arguments: Arguments
    act: service.Act


def commands(actions: Sequence[Action]) -> Callable[[argparse.ArgumentParser], None]:
    """Adds the actions of a command to its parser."""

    def add(parser: argparse.ArgumentParser) -> None:
        rows = parser.add_subparsers(dest="action", required=True, metavar="action")
        for action in actions:
            row = rows.add_parser(action.name, help=action.summary, description=action.summary)
            for name, keywords in action.arguments:
                row.add_argument(name, **keywords)
            service.add_arguments(row)
            row.set_defaults(act=action.act)

    return add


@service.asking
def run(client: Client, arguments: argparse.Namespace) -> int:
    """Carry out the action that the arguments name; exit codes as `app.cli.service` has them."""
    return int(arguments.act(client, arguments))


def _given(arguments: argparse.Namespace, *names: str) -> Json:
    return {name: value for name in names if (value := getattr(arguments, name))}


def _list_jobs(client: Client, arguments: argparse.Namespace) -> int:
    found = client.jobs(**_given(arguments, "state", "target", "model", "group", "label", "q"))
    return _tell_jobs(list(islice(found, arguments.limit)), arguments)


def _show_jobs(client: Client, arguments: argparse.Namespace) -> int:
    jobs = [client.job(job_id) for job_id in arguments.id]
    if arguments.json:
        return _tell_jobs(jobs, arguments)
    for job in jobs:
        _tell_fields(asdict(job))
    return service.DONE


def _wait_for_jobs(client: Client, arguments: argparse.Namespace) -> int:
    end = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    jobs = []
    for job_id in arguments.id:
        left = None if end is None else max(0.0, end - time.monotonic())
        jobs.append(client.wait(job_id, timeout=left))
        print(f"{job_id} {jobs[-1].state}", file=sys.stderr)
    _tell_jobs(jobs, arguments)
    return service.DONE if all(job.state == "succeeded" for job in jobs) else service.REFUSED


def _jobs_after(call: Callable[[Client, str], Job]) -> service.Act:
    """Shows the jobs that a call for each id answers."""
    return lambda client, arguments: _tell_jobs([call(client, i) for i in arguments.id], arguments)


def _artifacts(client: Client, arguments: argparse.Namespace) -> int:
    names = arguments.name or list(client.job(arguments.id).artifacts)
    if arguments.out is None:
        return _tell(arguments, names, lambda: print("\n".join(names)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = [str(client.download(arguments.id, name, arguments.out / Path(name).name)) for name in names]
    return _tell(arguments, files, lambda: print("\n".join(files)))


def _list_models(client: Client, arguments: argparse.Namespace) -> int:
    found = list(islice(client.models(**_given(arguments, "label", "q")), arguments.limit))
    rows = [(m.id, m.name, m.state, m.detail or "") for m in found]
    headings = ("id", "name", "state", "detail")
    return _tell(arguments, [asdict(m) for m in found], lambda: service.print_table(headings, rows))


def _show_model(client: Client, arguments: argparse.Namespace) -> int:
    model = asdict(client.model(arguments.id))
    return _tell(arguments, model, lambda: _tell_fields(model))


def _upload_model(client: Client, arguments: argparse.Namespace) -> int:
    external = beside(arguments.file)
    model = client.model(client.upload(arguments.file, external, name=arguments.name).id, wait=60.0)
    _tell(arguments, asdict(model), lambda: print(model.id))
    if model.state == "invalid":
        print(f"stowplan: {model.detail} [{model.code}]", file=sys.stderr)
        return service.REFUSED
    return service.DONE


def _rename_model(client: Client, arguments: argparse.Namespace) -> int:
    model = client.rename_model(arguments.id, arguments.name)
    return _tell(arguments, asdict(model), lambda: print(model.name))


def _list_targets(client: Client, arguments: argparse.Namespace) -> int:
    found = client.targets()
    rows = [(t["name"], t["origin"], t["device"], t["cores"], ", ".join(t["precisions"])) for t in found]
    headings = ("name", "origin", "device", "cores", "precisions")
    return _tell(arguments, found, lambda: service.print_table(headings, rows))


def _show_target(client: Client, arguments: argparse.Namespace) -> int:
    target = client.target(arguments.name)
    return _tell(arguments, target, lambda: _tell_fields(target))


def _add_target(client: Client, arguments: argparse.Namespace) -> int:
    target = client.describe_target(json.loads(arguments.file.read_text()))
    return _tell(arguments, target, lambda: print(target["name"]))


def _delete(call: Callable[[Client, str], None]) -> service.Act:
    """Calls for each id, whose answer is empty."""

    def act(client: Client, arguments: argparse.Namespace) -> int:
        for identifier in arguments.id:
            call(client, identifier)
        return _tell(arguments, {"deleted": arguments.id}, lambda: None)

    return act


def _tell(arguments: argparse.Namespace, answer: Any, show: Callable[[], None]) -> int:
    if arguments.json:
        service.print_json(answer)
    else:
        show()
    return service.DONE


def _tell_jobs(jobs: Sequence[Job], arguments: argparse.Namespace) -> int:
    headings = ("id", "state", "target", "name", "model", "made", "seconds", "result, phase or reason")
    answers, rows = [asdict(job) for job in jobs], map(_row, jobs)
    return _tell(arguments, answers, lambda: service.print_table(headings, rows))


def _row(job: Job) -> tuple[str, ...]:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.created))
    end = job.finished or time.time()
    seconds = "-" if job.started is None else f"{end - job.started:.1f}"
    reason = f"{job.code or ''} {job.detail or ''}".strip() or ("" if job.is_over else job.phase)
    reason = reason or ((job.summary or {}).get("comparison") or {}).get("sentence", "")
    return (job.id, job.state, job.target, job.model_name, job.model, made, seconds, reason)


def _tell_fields(fields: Json) -> None:
    for name, value in fields.items():
        if value is not None:
            print(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")


def _file(what: str) -> tuple[str, dict[str, Any]]:
    return "file", {"type": Path, "help": what}


_JOB, _MODEL = (("id", {"help": f"id of a {what}"}) for what in ("job", "model"))
_ALL_JOBS, _ALL_MODELS = ((name, {"nargs": "+"} | keywords) for name, keywords in (_JOB, _MODEL))
_FILTERS: Arguments = (
    ("--label", {"action": "append", "default": [], "metavar": "NAME[=VALUE]", "help": "repeatable"}),
    ("--q", {"metavar": "TEXT", "help": "that the model's name or a label's value contains"}),
    ("--limit", {"type": int, "default": 50, "help": "at most so many (default: 50)"}),
)
_JOBS_FILTERS: Arguments = (
    ("--state", {"choices": _STATES}),
    *((f"--{name}", {}) for name in ("target", "model", "group")),
    *_FILTERS,
)
_TIMEOUT = ("--timeout", {"type": float, "metavar": "SECONDS", "help": "exit code 3 when it is over"})
_NAMES = ("name", {"nargs": "*", "help": "artifacts (default: all)"})
_OUT = ("--out", {"type": Path, "help": "folder to download them into (default: list them)"})
_UPLOADED = _file("ONNX file or NAME-symbol.json of MXNet; external data and parameters are found beside it")
_CALLED = ("--name", {"help": "what to call it (default: the file's name)"})

JOBS = (
    Action("list", "Show jobs, latest first.", _JOBS_FILTERS, _list_jobs),
    Action("show", "Show all that is known of jobs.", (_ALL_JOBS,), _show_jobs),
    Action("wait", "Wait until jobs are over.", (_ALL_JOBS, _TIMEOUT), _wait_for_jobs),
    Action("cancel", "End jobs.", (_ALL_JOBS,), _jobs_after(Client.cancel)),
    Action("retry", "Run jobs again that are over.", (_ALL_JOBS,), _jobs_after(Client.retry)),
    Action("artifacts", "List or download what a job made.", (_JOB, _NAMES, _OUT), _artifacts),
    Action("delete", "Forget jobs that are over.", (_ALL_JOBS,), _delete(Client.delete_job)),
)
MODELS = (
    Action("list", "Show models, latest first.", _FILTERS, _list_models),
    Action("show", "Show all that is known of a model.", (_MODEL,), _show_model),
    Action("upload", "Upload a model, and have it inspected.", (_UPLOADED, _CALLED), _upload_model),
    Action(
        "rename",
        "Give a model another name.",
        (_MODEL, ("name", {"help": "what to call it from now on"})),
        _rename_model,
    ),
    Action("delete", "Forget models.", (_ALL_MODELS,), _delete(Client.delete_model)),
)
TARGETS = (
    Action("list", "Show targets.", (), _list_targets),
    Action("show", "Show all that is known of a target.", (("name", {"help": "of a target"}),), _show_target),
    Action("add", "Keep the description of a machine.", (_file("JSON file"),), _add_target),
)
