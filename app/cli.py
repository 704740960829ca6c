"""The command line: one row for each command. Heavy modules are imported by the commands that need them."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app import submit
from app.settings import DEFAULT_PORT, Settings, SettingsError


@dataclass(frozen=True, slots=True)
class Command:
    """One command: `arguments` adds its options to a parser, `run` does it and returns the exit code."""

    name: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _no_arguments(_parser: argparse.ArgumentParser) -> None:
    """The environment says all."""


def _serve(_arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from app.api.main import run as run_api
    from app.jobs.supervisor import parts, supervise

    settings = Settings.from_environment()
    console = Console()

    def started() -> None:
        shown = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host
        address = f"http://{shown}:{settings.port}"
        console.print(f"Stowplan listens on [bold]{address}[/bold]  (API: {address}/docs)", highlight=False)
        console.print(f"Data are kept in {settings.data.absolute()}. Ctrl-C stops.", highlight=False)
        console.print("In a second terminal:", highlight=False)
        url = "" if settings.port == DEFAULT_PORT else f" --url {address}"
        console.print(
            f"  .venv/bin/stowplan optimize --sample squeezenet --target host{url}", highlight=False
        )

    supervise(settings, parts(settings, run_api), started)
    return 0


def _worker(_arguments: argparse.Namespace) -> int:
    from app.jobs.worker import run

    run(Settings.from_environment().to_json())
    return 0


def _api(_arguments: argparse.Namespace) -> int:
    from app.api.main import run

    run(Settings.from_environment().to_json())
    return 0


COMMANDS: tuple[Command, ...] = (
    Command(
        "optimize", "Upload a model, wait for its job, show the result.", submit.add_arguments, submit.run
    ),
    Command("serve", "Start the API and the workers, and keep them running.", _no_arguments, _serve),
    Command("api", "Start the API alone.", _no_arguments, _api),
    Command("worker", "Start one worker alone.", _no_arguments, _worker),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; the exit code is 2 for what cannot be understood."""
    parser = argparse.ArgumentParser(prog="stowplan", description="Plans how ONNX graphs are stored and run.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for row in COMMANDS:
        row.arguments(commands.add_parser(row.name, help=row.summary, description=row.summary))
    given = parser.parse_args(arguments)
    command = next(row for row in COMMANDS if row.name == given.command)
    try:
        return command.run(given)
    except SettingsError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
