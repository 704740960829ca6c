"""`stowplan plan`: offsets for the buffers of a CSV file; `stowplan peak`: the memory of a shape."""

import argparse
import json
import sys
from pathlib import Path

from app.cli import service
from app.cli.submit import input_shapes
from app.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, the capacity, and the form of the answer."""
    parser.add_argument(
        "buffers", help="CSV file with columns id, lower, upper, size[, alignment]; - reads standard input"
    )
    parser.add_argument("--capacity", type=int, help="bytes of the arena; without it the peak is minimized")
    parser.add_argument("--json", action="store_true", help="print offsets and figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when all buffers fit, 1 when no placement was found, 2 when the file cannot be used."""
    from app.engine.memory import csv_table, portfolio

    try:
        source = sys.stdin if arguments.buffers == "-" else None
        text = source.read() if source else Path(arguments.buffers).read_text(encoding="utf-8")
        if arguments.capacity is not None and arguments.capacity < 0:
            raise csv_table.TableError(f"--capacity: expected at least 0, found {arguments.capacity}")  # noqa: TRY301
        problem = csv_table.read(text, arguments.capacity)
    except (OSError, UnicodeDecodeError, csv_table.TableError) as error:
        print(f"stowplan plan: {arguments.buffers}: {error}", file=sys.stderr)
        return 2
    timed = portfolio.timed(problem)
    solution, seconds = timed.solution, timed.seconds
    why = portfolio.shortage(problem, solution)
    if arguments.json:
        answer = {
            "fits": why is None,
            "reason": why,
            "capacity": arguments.capacity,
            "peak_bytes": solution.peak,
            "lower_bound": solution.lower_bound,
            "gap": solution.gap,
            "proved": solution.proved,
            "method": solution.method,
            "nodes": solution.nodes,
            "seconds": seconds,
            "load_seconds": timed.load_seconds,
            "offsets": dict(solution.offsets) if why is None else None,
        }
        print(json.dumps(answer, indent=1))
    elif why is None:
        print("id,offset")
        for name, offset in solution.offsets.items():
            print(f"{name},{offset}")
    told = "optimal" if solution.proved else f"{solution.gap:.3%} above the lower bound"
    summary = (
        f"{len(problem.buffers)} buffers, peak {solution.peak} byte, lower bound {solution.lower_bound} byte "
        f"({told}); {solution.method}, {solution.nodes} nodes, {seconds:.3f} s"
    )
    print(f"stowplan plan: {why or summary}", file=sys.stderr)
    return 0 if why is None else 1


def add_peak(parser: argparse.ArgumentParser) -> None:
    """A job, or a memory.json, and shapes."""
    parser.add_argument("job", help="id of a job whose shapes had symbols, or a file memory.json of one")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=1x3x224x224",
        help="shape of an input with symbols",
    )
    service.add_service(parser)


@service.asking
def peak(client: Client, arguments: argparse.Namespace) -> int:
    """Show what a shape takes before it runs, by the formulas of a memory.json."""
    from app.engine.memory.region_peak import peak_at, region_part
    from app.engine.types.errors import EngineError

    path = Path(arguments.job)
    text = path.read_bytes() if path.is_file() else client.artifact(arguments.job, "memory.json")
    shapes = {name: tuple(map(int, dims)) for name, dims in input_shapes(arguments.input).items()}
    try:
        region = region_part(json.loads(text))
        found = peak_at(region, shapes)
    except EngineError as error:
        print(f"stowplan: {error.message}", file=sys.stderr)
        return service.REFUSED
    about = "" if found.exact else " at most"
    print(f"{found.nbytes} byte{about}; no shape takes more than {region['worst_bytes']} byte")
    print(f"proof: {region['proof'] or 'samples only'}")
    return service.DONE
