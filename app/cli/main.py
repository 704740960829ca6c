"""The command line: one row for each command. Heavy modules are imported by the commands that need them."""

import argparse
import json
import os
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.cli import (
    bench,
    deploy,
    explain,
    gradient,
    graphs,
    manage,
    memory,
    run_operator,
    service,
    submit,
    sweep,
    warm,
)
from app.settings import DEFAULT_PORT, PREFIX, Settings, SettingsError, described


@dataclass(frozen=True, slots=True)
class Command:
    """One command: `arguments` adds its options to a parser, `run` does it and returns the exit code."""

    name: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _settings_arguments(parser: argparse.ArgumentParser) -> None:
    """None but settings."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    rows = (
        textwrap.fill(f"{name}={default}  {meaning}", 100, initial_indent="  ", subsequent_indent="      ")
        for name, default, meaning in described()
    )
    parser.epilog = "Settings, from the environment, with their defaults:\n" + "\n".join(rows)
    parser.add_argument("--data", type=Path, help=f"folder of all data (default: {PREFIX}DATA, else data)")


def _address_arguments(parser: argparse.ArgumentParser) -> None:
    _settings_arguments(parser)
    parser.add_argument("--host", help=f"address to listen on (default: {PREFIX}HOST, else 127.0.0.1)")
    parser.add_argument("--port", type=int, help=f"port (default: {PREFIX}PORT, else {DEFAULT_PORT})")


def _settings(arguments: argparse.Namespace) -> Settings:
    """The settings that the environment gives, but for those that the command names."""
    given = {name: getattr(arguments, name, None) for name in ("data", "host", "port")}
    return replace(
        Settings.from_environment(), **{name: value for name, value in given.items() if value is not None}
    )


def _serve(arguments: argparse.Namespace) -> int:
    from app.jobs.supervisor import service_processes, supervise
    from app.serving.executor_processes import Executors

    settings = _settings(arguments)
    _check_port(settings)
    _check_access(settings)
    threading.Thread(target=_announce, args=(settings,), daemon=True).start()
    supervise(settings, service_processes(settings, "app.api.main:run"), Executors(settings))
    return 0


def _check_port(settings: Settings) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); "
                f"set {PREFIX}HOST or {PREFIX}PORT"
            ) from error


def _check_access(settings: Settings) -> None:
    from app.api.main import check_access
    from app.jobs.store.database import migrate

    migrate(settings)
    check_access(settings)


def _announce(settings: Settings) -> None:
    """Tell how to go on, once the API answers."""
    from rich.console import Console

    reachable = "127.0.0.1" if settings.host in ("0.0.0.0", "") else settings.host
    while True:
        try:
            socket.create_connection((reachable, settings.port), timeout=1.0).close()
            break
        except OSError:
            time.sleep(0.1)
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    address = f"http://{reachable}:{settings.port}"
    url = "" if settings.port == DEFAULT_PORT else f" --url {address}"
    console.print(f"Stowplan listens on [bold]{address}[/bold] (documentation: {address}/docs).")
    console.print(f"It keeps its data in {settings.data.absolute()}; Ctrl-C stops it.")
    console.print("In a second terminal:")
    console.print(f"  .venv/bin/stowplan optimize --sample squeezenet --target host{url}")


def _worker_arguments(parser: argparse.ArgumentParser) -> None:
    _settings_arguments(parser)
    parser.add_argument(
        "--queues",
        default="",
        metavar="cpu,inspect,target:<fingerprint>",
        help="queues to serve (default: all that this machine can; `target` is short for its own)",
    )


def _worker(arguments: argparse.Namespace) -> int:
    from app.jobs.worker.worker import queues_of, run

    settings = _settings(arguments)
    if arguments.queues:
        settings = replace(settings, queues=queues_of(arguments.queues))
    run(settings.to_json())
    return 0


def _api(arguments: argparse.Namespace) -> int:
    from app.api.main import run

    settings = _settings(arguments)
    _check_access(settings)
    run(settings.to_json())
    return 0


def _executors(arguments: argparse.Namespace) -> int:
    from app.jobs.store.database import migrate
    from app.jobs.supervisor import supervise
    from app.serving.executor_processes import Executors

    settings = _settings(arguments)
    migrate(settings)
    supervise(settings, [], Executors(settings))
    return 0


def _keys_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    create = actions.add_parser("create", help="Make a key, and print it this once.")
    create.add_argument("--json", action="store_true", help="print it with its id, as JSON")
    create.add_argument("--name", required=True, help="what it is for")
    create.add_argument("--scope", choices=("read", "submit", "admin"), default="submit")
    create.add_argument("--owner", help="whom models and jobs belong to (default: the key itself)")
    listing = actions.add_parser("list", help="Show all keys, without their texts.")
    listing.add_argument("--json", action="store_true", help="print them as JSON")
    actions.add_parser("revoke", help="Make a key worthless.").add_argument("id")


def _keys(arguments: argparse.Namespace) -> int:
    from app.jobs.errors import ServiceError
    from app.jobs.store import keys
    from app.jobs.store.database import Database, migrate

    settings = Settings.from_environment()
    migrate(settings)
    database = Database(settings.jobs_database_url)
    try:
        with database.write() as connection:
            if arguments.action == "create":
                key_id, text = keys.create(connection, arguments.name, arguments.scope, arguments.owner)
                print(json.dumps({"id": key_id, "key": text}) if arguments.json else text)
            elif arguments.action == "revoke":
                keys.revoke(connection, arguments.id)
            else:
                rows = [dict(row) for row in keys.listed(connection)]
                if arguments.json:
                    print(json.dumps(rows))
                else:
                    _show_keys(rows)
    except ServiceError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return 1
    finally:
        database.close()
    return 0


def _show_keys(rows: Sequence[Mapping[str, Any]]) -> None:
    def when(seconds: float | None) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""

    texts, times = ("id", "name", "owner", "scope"), ("created", "used", "revoked")
    shown = [(*(row[name] for name in texts), *(when(row[name]) for name in times)) for row in rows]
    service.print_table((*texts, *times), shown)


COMMANDS: tuple[Command, ...] = (
    Command(
        "optimize", "Upload a model, wait for its job, show the result.", submit.add_arguments, submit.run
    ),
    Command("sweep", "Optimize a model in several ways, and compare.", sweep.add_arguments, sweep.run),
    Command(
        "explain",
        "Print the plan of a model, after any pass, without a server.",
        explain.add_arguments,
        explain.run,
    ),
    Command("export", "Write what a job planned as a library.", submit.add_export, submit.export),
    Command(
        "join-wheels",
        "Write wheels of one model as one wheel.",
        graphs.add_join_wheels,
        graphs.join_wheels,
    ),
    Command("convert", "Write a model as ONNX: a symbol of MXNet too.", graphs.add_convert, graphs.convert),
    Command("jobs", "List, show, wait for, cancel and retry jobs.", manage.commands(manage.JOBS), manage.run),
    Command(
        "models", "List, show, upload, rename and delete models.", manage.commands(manage.MODELS), manage.run
    ),
    Command("targets", "List, show and describe targets.", manage.commands(manage.TARGETS), manage.run),
    Command(
        "run-operator",
        "Run one operator on tensors, and tell what computed it.",
        run_operator.add_arguments,
        run_operator.run,
    ),
    Command("values", "List the values of a model file.", graphs.add_values, graphs.values),
    Command("extract", "Write a part of a model as a model.", graphs.add_extract, graphs.extract),
    Command("compose", "Write two models as one.", graphs.add_compose, graphs.compose),
    Command(
        "capacity",
        "Find how to deploy what a job made, and its throughput.",
        deploy.add_capacity,
        deploy.capacity,
    ),
    Command("deploy", "Let what a job made answer inferences.", deploy.add_deploy, deploy.deploy),
    Command("peak", "Show what a shape takes before it runs.", memory.add_peak, memory.peak),
    Command("deployments", "Show what is deployed.", service.add_service, deploy.deployments),
    Command("undeploy", "End a deployed model.", deploy.add_undeploy, deploy.undeploy),
    Command("gradient", "Make the training graph of a model.", gradient.add_arguments, gradient.run),
    Command("plan", "Place buffers of a CSV file in an arena.", memory.add_arguments, memory.run),
    Command("warm", "Compile and tune beforehand what models need.", warm.add_arguments, warm.run),
    Command("bench", "Time models on this machine or on its GPU.", bench.add_arguments, bench.run),
    Command(
        "serve",
        "Start the API, the workers and the deployed models, and keep them running.",
        _address_arguments,
        _serve,
    ),
    Command("api", "Start the API alone.", _address_arguments, _api),
    Command("worker", "Start one worker alone.", _worker_arguments, _worker),
    Command("executors", "Start the processes of deployed models alone.", _settings_arguments, _executors),
    Command("keys", "Make, list and revoke keys.", _keys_arguments, _keys),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; the exit code is 2 for what cannot be understood."""
    parser = argparse.ArgumentParser(prog="stowplan", description="Plans how ONNX graphs are stored and run.")
    parser.add_argument("--version", action="version", version=f"stowplan {version('stowplan')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for row in COMMANDS:
        row.arguments(commands.add_parser(row.name, help=row.summary, description=row.summary))
    given = parser.parse_args(arguments)
    command = next(row for row in COMMANDS if row.name == given.command)
    try:
        code = command.run(given)
        sys.stdout.flush()
    except SettingsError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return service.NOT_UNDERSTOOD
    except KeyboardInterrupt:
        print("\nstowplan: interrupted", file=sys.stderr)
        return service.INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return service.UNREAD
    return code


if __name__ == "__main__":
    sys.exit(main())
