"""`stowplan capacity`, `deploy`, `deployments` and `undeploy`: models that answer inferences."""

import argparse
import re
import sys
from typing import Any

from app.cli import service
from app.client import Client

_ANSWER_SECONDS = 180.0  # to wait for a worker and its answer
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LATENCY = re.compile(r"p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(us|ms|s)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMG]i?B|)")


def latency_of(text: str) -> dict[str, float]:
    """Bound of `p99=20ms`."""
    found = _LATENCY.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a percentile and a time, as p99=20ms, found {text!r}")
    return {"percentile": float(found[1]), "seconds": float(found[2]) * _SECONDS[found[3]]}


def bytes_of(text: str) -> int:
    """Bytes of `2GiB`."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2] not in _BYTES:
        raise argparse.ArgumentTypeError(f"expected a size, as 2GiB, found {text!r}")
    return round(float(found[1]) * _BYTES[found[2]])


def add_capacity(parser: argparse.ArgumentParser) -> None:
    """A job, and bounds."""
    parser.add_argument("job", help="id of a job that succeeded")
    parser.add_argument(
        "--latency", type=latency_of, metavar="p99=20ms", help="from the request to the answer"
    )
    parser.add_argument("--memory", type=bytes_of, metavar="2GiB", help="that the process may take")
    parser.add_argument("--seconds", type=float, default=15.0, help="to answer in (default: 15)")
    parser.add_argument(
        "--over-http",
        action="store_true",
        help="as a client on this machine sees it, not in the process alone",
    )
    service.add_arguments(parser)


def capacity(arguments: argparse.Namespace) -> int:
    """Exit code 0 when a deployment was found and verified, 1 when not."""
    return service.ask(arguments, _capacity, timeout=_ANSWER_SECONDS)


def _capacity(client: Client, arguments: argparse.Namespace) -> int:
    bounds = {
        "latency": arguments.latency,
        "memory_bytes": arguments.memory,
        "over_http": arguments.over_http,
    }
    found = client.capacity(arguments.job, answer_seconds=arguments.seconds, **bounds)
    chosen = found["chosen"]
    if arguments.json:
        service.print_json(found)
    else:
        headings = (
            "",
            "instances",
            "threads",
            "batches",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "MiB",
            "run times",
        )
        service.print_table((*headings, "rejected"), map(_row, found["configurations"]))
        for note in found["notes"]:
            print(f"note: {note}")
        if chosen is not None:
            _tell(chosen, arguments.job, found["http"])
    return service.DONE if chosen is not None and chosen["verified"] else service.REFUSED


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    batches = ",".join(map(str, row["batch_sizes"])) or "-"
    if row["batch_delay_ms"]:
        batches += f" after {row['batch_delay_ms']:g} ms"
    best = row["best"]
    figures = ("-",) * 3
    if best is not None:
        latency = best["latency"]
        figures = (
            f"{best['throughput']:.1f}",
            f"{latency['p50'] * 1e3:.2f}",
            f"{latency['p99'] * 1e3:.2f}",
        )
    mark = "*" if row["is_chosen"] else ""
    shape = (mark, str(row["instances"]), str(row["threads"]), batches)
    return (*shape, *figures, f"{row['memory_bytes'] / 2**20:.0f}", row["run_times"], row["rejection"])


def _tell(chosen: dict[str, Any], job: str, http: dict[str, float] | None) -> None:
    """The chosen configuration: predicted, measured, and the command that deploys it."""
    for word, point in (("predicted", chosen["predicted"]), ("measured", chosen["loads"][-1])):
        latency = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in point["latency"].items())
        print(f"{word} at {point['rate']:.1f} requests/s: {point['throughput']:.1f}/s, {latency}")
    memory, load = chosen["memory"], chosen["loads"][-1]
    print(
        f"memory: {memory['predicted_bytes'] / 2**20:.0f} MiB predicted, "
        f"{memory['measured_bytes'] / 2**20:.0f} MiB measured; weights, in one copy, "
        f"{memory['weights_bytes'] / 2**20:.0f} MiB"
    )
    verdict = "verified" if chosen["verified"] else "NOT verified"
    seen = "HTTP is not included"
    if http is not None:
        seen = f"with {sum(http.values()) * 1e3:.2f} ms of processor time of client and HTTP each"
    print(f"{verdict} by a load of {load['requests']} requests at random moments; {seen}")
    how = chosen["deployment"]
    batches = ""
    if how["batch_sizes"]:
        sizes = ",".join(map(str, how["batch_sizes"]))
        batches = f" --batch-sizes {sizes} --batch-delay {how['batch_delay_ms']:g}"
    threads = f"--instances {how['instances']} --threads {how['threads']}"
    print(f"stowplan deploy {job} --name NAME {threads}{batches}")


def add_deploy(parser: argparse.ArgumentParser) -> None:
    """A job and a name."""
    parser.add_argument("job", help="id of a job that succeeded")
    parser.add_argument("--name", required=True, help="under which the model answers")
    parser.add_argument("--version", type=int, help="of the name (default: the next)")
    parser.add_argument("--instances", type=int, default=1, help="inferences that run at once (default: 1)")
    parser.add_argument("--threads", type=int, help="of each instance (default: those of the job)")
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
        threads=arguments.threads,
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
