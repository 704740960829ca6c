"""`stowplan deploy`, `deployments` and `undeploy`: models that answer inferences."""

import argparse
import sys
from collections.abc import Callable

from app.client import DEFAULT_URL, Client, Deployment, ServiceFailureError, UnreachableError
from app.settings import key_of_client


def _add_service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", help="key of the service (default: STOWPLAN_KEY)")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"address of the service (default: {DEFAULT_URL})")


def add_deploy(parser: argparse.ArgumentParser) -> None:
    """A job and a name."""
    parser.add_argument("job", help="id of a job that succeeded")
    parser.add_argument("--name", required=True, help="under which the model answers")
    parser.add_argument("--version", type=int, help="of the name (default: the next)")
    parser.add_argument(
        "--wait", type=float, default=120.0, metavar="SECONDS", help="for the model to answer (default: 120)"
    )
    _add_service(parser)


def deploy(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the model answers, 1 when it does not."""

    def act(client: Client) -> int:
        made = client.deploy(arguments.job, arguments.name, version=arguments.version)
        found = client.wait_until_ready(made.name, made.version, timeout=arguments.wait)
        if found.state != "ready":
            print(f"{found.name} {found.version} {found.state}: {found.detail}", file=sys.stderr)
            return 1
        print(f"{found.name} {found.version} is ready: {arguments.url.rstrip('/')}{found.url}/infer")
        return 0

    return _with_service(arguments, act)


def add_deployments(parser: argparse.ArgumentParser) -> None:
    """Nothing more."""
    _add_service(parser)


def deployments(arguments: argparse.Namespace) -> int:
    """Show all deployed models."""

    def act(client: Client) -> int:
        _show(client.deployments())
        return 0

    return _with_service(arguments, act)


def add_undeploy(parser: argparse.ArgumentParser) -> None:
    """A name, and perhaps one version."""
    parser.add_argument("name")
    parser.add_argument("--version", type=int, help="only this one (default: all)")
    _add_service(parser)


def undeploy(arguments: argparse.Namespace) -> int:
    """End a deployed model."""

    def act(client: Client) -> int:
        client.undeploy(arguments.name, version=arguments.version)
        return 0

    return _with_service(arguments, act)


def _with_service(arguments: argparse.Namespace, act: Callable[[Client], int]) -> int:
    try:
        with Client(arguments.url, key=arguments.key or key_of_client()) as client:
            return act(client)
    except UnreachableError as error:
        print(f"stowplan: {error}; start it with `make run`", file=sys.stderr)
        return 2
    except (ServiceFailureError, TimeoutError, LookupError) as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return 1


def _show(rows: list[Deployment]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "version", "state", "programs")
    table.add_column("job", min_width=32)  # an id that is cut is of no use
    table.add_column("detail")
    for row in rows:
        table.add_row(row.name, row.version, row.state, str(row.programs), row.job, row.detail or "")
    Console(soft_wrap=True).print(table)
