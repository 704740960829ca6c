"""`stowplan deploy`, `deployments` and `undeploy`: models that answer inferences."""

import argparse
import sys
from collections.abc import Callable

from app.cli import service
from app.client import Client, Deployment, ServiceFailureError, UnreachableError
from app.settings import key_of_client


def add_deploy(parser: argparse.ArgumentParser) -> None:
    """A job and a name."""
    parser.add_argument("job", help="id of a job that succeeded")
    parser.add_argument("--name", required=True, help="under which the model answers")
    parser.add_argument("--version", type=int, help="of the name (default: the next)")
    parser.add_argument(
        "--wait", type=float, default=120.0, metavar="SECONDS", help="for the model to answer (default: 120)"
    )
    service.add_service(parser)


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
    service.add_service(parser)


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
    service.add_service(parser)


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
    headings = ("name", "version", "state", "programs", "job", "detail")
    service.print_table(
        headings, [(d.name, d.version, d.state, d.programs, d.job, d.detail or "") for d in rows]
    )
