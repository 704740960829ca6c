"""Common parts of all commands that call a service: its address, JSON on request, exit codes.

What a program should read goes to standard output, all else to standard error.

| exit code | |
|---|---|
| 0 | it was done, and every job that was waited for succeeded |
| 1 | the service refused, or a job failed or was cancelled |
| 2 | the request cannot be understood, a file is missing, or no service answers |
| 3 | time was over before the jobs were |
| 130 | Ctrl-C; a job that was asked for goes on |
| 141 | whoever read the output has gone |
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from app.client import DEFAULT_URL, Client, ServiceFailureError, UnreachableError
from app.settings import key_of_client, url_of_client

DONE, REFUSED, NOT_UNDERSTOOD, NOT_OVER = range(4)
INTERRUPTED, UNREAD = 130, 141  # as shells have them: 128 and the signal's number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the service is, and how to answer."""
    parser.add_argument("--json", action="store_true", help="print the answer as JSON, for programs")
    add_service(parser)


def add_service(parser: argparse.ArgumentParser) -> None:
    """Where the service is, and who asks it."""
    parser.add_argument("--key", help="key of the service (default: STOWPLAN_KEY)")
    parser.add_argument(
        "--url",
        default=url_of_client() or DEFAULT_URL,
        help=f"address of the service (default: STOWPLAN_URL, else {DEFAULT_URL})",
    )


Act = Callable[[Client, argparse.Namespace], int]  # prints its answer and returns the exit code


def ask(arguments: argparse.Namespace, act: Act, *, timeout: float = 60.0) -> int:
    """Act with a client, and tell in one line what went wrong; returns the exit code."""
    try:
        with Client(arguments.url, key=arguments.key or key_of_client(), timeout=timeout) as client:
            return act(client, arguments)
    except TimeoutError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return NOT_OVER
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return NOT_UNDERSTOOD
    except UnreachableError as error:
        print(f"stowplan: {error}; start it with `make run`", file=sys.stderr)
        return NOT_UNDERSTOOD
    except ServiceFailureError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        for problem in error.errors:
            print(f"  {problem.get('pointer', '')}: {problem.get('message', '')}", file=sys.stderr)
        return REFUSED


def asking(act: Act) -> Callable[[argparse.Namespace], int]:
    """Decorate what a command does with a client, as `ask` lets it."""
    return lambda arguments: ask(arguments, act)


def left_behind(what: str, identifier: str, jobs: Sequence[str], arguments: argparse.Namespace) -> int:
    """Tell after Ctrl-C, in one line, what goes on, and how to follow and to cancel it."""
    where = "" if arguments.url in (DEFAULT_URL, url_of_client()) else f" --url {arguments.url}"
    ids = " ".join(jobs)
    print(
        f"\nstowplan: {what} {identifier} goes on; `stowplan jobs wait {ids}{where}` follows it, "
        f"`stowplan jobs cancel {ids}{where}` ends it",
        file=sys.stderr,
    )
    return INTERRUPTED


def print_json(answer: Any) -> None:
    """Print an answer for a program."""
    print(json.dumps(answer, indent=1))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns of plain text, which neither a narrow terminal nor a pipe cuts."""
    lines = [list(map(str, headings)), *(list(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
