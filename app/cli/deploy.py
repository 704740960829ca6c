"""`stowplan deploy`, `deployments` and `undeploy`: models that answer inferences."""

import argparse
import sys

from app.cli import service
from app.client import Client


def add_deploy(parser: argparse.ArgumentParser) -> None:
    """A job and a name."""
    parser.add_argument("job", help="id of a job that succeeded")
    parser.add_argument("--name", required=True, help="under which the model answers")
    parser.add_argument("--version", type=int, help="of the name (default: the next)")
    parser.add_argument(
        "--instances", type=int, default=1, help="inferences that run at once, each with the job's threads"
    )
    parser.add_argument(
        "--batch-sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=[],
        metavar="N,N",
        help="numbers of requests that are computed together, as 2,4,8 (default: each alone)",
    )
    parser.add_argument(
        "--batch-delay",
        type=float,
        default=2.0,
        metavar="MS",
        help="that a request waits at most for others of its batch (default: 2)",
    )
    parser.add_argument(
        "--wait", type=float, default=120.0, metavar="SECONDS", help="for the model to answer (default: 120)"
    )
    service.add_service(parser)


@service.asking
def deploy(client: Client, arguments: argparse.Namespace) -> int:
    """Exit code 0 when the model answers, 1 when it does not."""
    made = client.deploy(
        arguments.job,
        arguments.name,
        version=arguments.version,
        instances=arguments.instances,
        batch_sizes=arguments.batch_sizes,
        batch_delay_ms=arguments.batch_delay,
    )
    try:
        found = client.wait_until_ready(made.name, made.version, timeout=arguments.wait)
    except (TimeoutError, LookupError) as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return service.REFUSED
    if found.state != "ready":
        print(f"{found.name} {found.version} {found.state}: {found.detail}", file=sys.stderr)
        return service.REFUSED
    print(f"{found.name} {found.version} is ready: {arguments.url.rstrip('/')}{found.url}/infer")
    return service.DONE


@service.asking
def deployments(client: Client, _arguments: argparse.Namespace) -> int:
    """Show all deployed models."""
    headings = ("name", "version", "state", "programs", "job", "detail")
    rows = client.deployments()
    service.print_table(
        headings, [(d.name, d.version, d.state, d.programs, d.job, d.detail or "") for d in rows]
    )
    return service.DONE


def add_undeploy(parser: argparse.ArgumentParser) -> None:
    """A name, and perhaps one version."""
    parser.add_argument("name")
    parser.add_argument("--version", type=int, help="only this one (default: all)")
    service.add_service(parser)


@service.asking
def undeploy(client: Client, arguments: argparse.Namespace) -> int:
    """End a deployed model."""
    client.undeploy(arguments.name, version=arguments.version)
    return service.DONE
