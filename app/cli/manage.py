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

Parser = argparse.ArgumentParser
_STATES = ("queued", "waiting_for_target", "running", "succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a command; `act` prints its answer and returns the exit code."""

    name: str
    summary: str
    arguments: Callable[[Parser], None]
    act: Callable[[Client, argparse.Namespace], int]


def commands(actions: Sequence[Action]) -> Callable[[Parser], None]:
    """Adds the actions of a command to its parser."""

    def add(parser: Parser) -> None:
        rows = parser.add_subparsers(dest="action", required=True, metavar="action")
        for action in actions:
            row = rows.add_parser(action.name, help=action.summary, description=action.summary)
            action.arguments(row)
            service.add_arguments(row)
            row.set_defaults(act=action.act)

    return add


def run(arguments: argparse.Namespace) -> int:
    """Carry out the action that the arguments name; exit codes as `answering` has them."""
    return service.ask(arguments, lambda client: int(arguments.act(client, arguments)))


def _one(what: str) -> Callable[[Parser], None]:
    return lambda parser: _add_id(parser, what, None)


def _several(what: str) -> Callable[[Parser], None]:
    return lambda parser: _add_id(parser, what, "+")


def _add_id(parser: Parser, what: str, count: str | None) -> None:
    parser.add_argument("id", nargs=count, help=f"id of a {what}")


def _filters(parser: Parser) -> None:
    parser.add_argument("--label", action="append", default=[], metavar="NAME[=VALUE]", help="repeatable")
    parser.add_argument("--q", metavar="TEXT", help="that the model's name or a label's value contains")
    parser.add_argument("--limit", type=int, default=50, help="at most so many (default: 50)")


def _jobs_filters(parser: Parser) -> None:
    parser.add_argument("--state", choices=_STATES)
    for name in ("target", "model", "group"):
        parser.add_argument(f"--{name}")
    _filters(parser)


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


def _cancel_jobs(client: Client, arguments: argparse.Namespace) -> int:
    return _tell_jobs([client.cancel(job_id) for job_id in arguments.id], arguments)


def _retry_jobs(client: Client, arguments: argparse.Namespace) -> int:
    return _tell_jobs([client.retry(job_id) for job_id in arguments.id], arguments)


def _delete_jobs(client: Client, arguments: argparse.Namespace) -> int:
    return _delete(client.delete_job, arguments)


def _artifacts(client: Client, arguments: argparse.Namespace) -> int:
    names = arguments.name or list(client.job(arguments.id).artifacts)
    if arguments.out is None:
        _tell(arguments, names, lambda: print("\n".join(names)))
        return service.DONE
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = [str(client.download(arguments.id, name, arguments.out / Path(name).name)) for name in names]
    _tell(arguments, files, lambda: print("\n".join(files)))
    return service.DONE


def _list_models(client: Client, arguments: argparse.Namespace) -> int:
    found = list(islice(client.models(**_given(arguments, "label", "q")), arguments.limit))
    rows = [(m.id, m.name, m.state, m.detail or "") for m in found]
    headings = ("id", "name", "state", "detail")
    _tell(arguments, [asdict(m) for m in found], lambda: service.print_table(headings, rows))
    return service.DONE


def _show_model(client: Client, arguments: argparse.Namespace) -> int:
    model = asdict(client.model(arguments.id))
    _tell(arguments, model, lambda: _tell_fields(model))
    return service.DONE


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
    _tell(arguments, asdict(model), lambda: print(model.name))
    return service.DONE


def _delete_models(client: Client, arguments: argparse.Namespace) -> int:
    return _delete(client.delete_model, arguments)


def _list_targets(client: Client, arguments: argparse.Namespace) -> int:
    found = client.targets()
    rows = [(t["name"], t["origin"], t["device"], t["cores"], ", ".join(t["precisions"])) for t in found]
    headings = ("name", "origin", "device", "cores", "precisions")
    _tell(arguments, found, lambda: service.print_table(headings, rows))
    return service.DONE


def _show_target(client: Client, arguments: argparse.Namespace) -> int:
    target = client.target(arguments.name)
    _tell(arguments, target, lambda: _tell_fields(target))
    return service.DONE


def _add_target(client: Client, arguments: argparse.Namespace) -> int:
    target = client.describe_target(json.loads(arguments.file.read_text()))
    _tell(arguments, target, lambda: print(target["name"]))
    return service.DONE


def _delete(delete: Callable[[str], None], arguments: argparse.Namespace) -> int:
    for identifier in arguments.id:
        delete(identifier)
    _tell(arguments, {"deleted": arguments.id}, lambda: None)
    return service.DONE


def _tell(arguments: argparse.Namespace, answer: Any, show: Callable[[], None]) -> None:
    if arguments.json:
        service.print_json(answer)
    else:
        show()


def _tell_jobs(jobs: Sequence[Job], arguments: argparse.Namespace) -> int:
    headings = ("id", "state", "target", "name", "model", "made", "seconds", "result, phase or reason")
    _tell(
        arguments,
        [asdict(job) for job in jobs],
        lambda: service.print_table(headings, [_row(job) for job in jobs]),
    )
    return service.DONE


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


def _nothing(_parser: Parser) -> None:
    """No more than all actions have."""


def _wait_arguments(parser: Parser) -> None:
    _add_id(parser, "job", "+")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="exit code 3 when it is over")


def _artifacts_arguments(parser: Parser) -> None:
    _add_id(parser, "job", None)
    parser.add_argument("name", nargs="*", help="artifacts (default: all)")
    parser.add_argument("--out", type=Path, help="folder to download them into (default: list them)")


def _file(what: str) -> Callable[[Parser], None]:
    def add(parser: Parser) -> None:
        parser.add_argument("file", type=Path, help=what)

    return add


def _upload_arguments(parser: Parser) -> None:
    _file("ONNX file; external data are found beside it")(parser)
    parser.add_argument("--name", help="what to call it (default: the file's name)")


def _rename_arguments(parser: Parser) -> None:
    _add_id(parser, "model", None)
    parser.add_argument("name", help="what to call it from now on")


def _name(parser: Parser) -> None:
    parser.add_argument("name", help="of a target")


JOBS = (
    Action("list", "Show jobs, latest first.", _jobs_filters, _list_jobs),
    Action("show", "Show all that is known of jobs.", _several("job"), _show_jobs),
    Action("wait", "Wait until jobs are over.", _wait_arguments, _wait_for_jobs),
    Action("cancel", "End jobs.", _several("job"), _cancel_jobs),
    Action("retry", "Run jobs again that are over.", _several("job"), _retry_jobs),
    Action("artifacts", "List or download what a job made.", _artifacts_arguments, _artifacts),
    Action("delete", "Forget jobs that are over.", _several("job"), _delete_jobs),
)
MODELS = (
    Action("list", "Show models, latest first.", _filters, _list_models),
    Action("show", "Show all that is known of a model.", _one("model"), _show_model),
    Action("upload", "Upload a model, and have it inspected.", _upload_arguments, _upload_model),
    Action("rename", "Give a model another name.", _rename_arguments, _rename_model),
    Action("delete", "Forget models.", _several("model"), _delete_models),
)
TARGETS = (
    Action("list", "Show targets.", _nothing, _list_targets),
    Action("show", "Show all that is known of a target.", _name, _show_target),
    Action("add", "Keep the description of a machine.", _file("JSON file"), _add_target),
)
