"""`stowplan sweep`: optimize a model with several option sets on several targets, and compare."""

import argparse
import itertools
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.cli import service, submit
from app.client import Client, Group, Json

_LOOK_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, what varies, and what the best must keep."""
    submit.add_request_arguments(parser)
    parser.add_argument("--target", action="append", help="repeatable (default: host)")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="OPTION=A,B,...",
        help="values of an option, such as precision=f32,bf16; all combinations are tried; repeatable",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="JSON", help="one more option set; repeatable"
    )
    parser.add_argument("--objective", choices=("latency", "memory"), default="latency")
    parser.add_argument("--max-seconds", type=float, help="of one call, for the best")
    parser.add_argument("--max-memory", type=int, metavar="BYTES", help="of activations, for the best")
    parser.add_argument("--max-difference", type=float, help="as a fraction of an output's maximum")
    parser.add_argument("--out", type=Path, help="folder for the artifacts of the best job")


@service.asking
def run(client: Client, arguments: argparse.Namespace) -> int:
    """Exit code 0 when there is a best job, even when others failed."""
    from rich.console import Console

    body, sets = submit.request(arguments), option_sets(arguments.vary, arguments.set)
    model_id, _ = submit.upload(client, arguments)
    body |= submit.put_files(client, arguments)
    group = client.sweep(
        model_id,
        sets,
        targets=arguments.target or ["host"],
        objective=arguments.objective,
        constraints=_constraints(arguments),
        **body,
    )
    console, jobs = Console(stderr=True, emoji=False), [job["job"] for job in group.jobs]
    console.print(f"Job group {group.id}", highlight=False, soft_wrap=True)
    try:
        group = _watch(client, group, console)
    except KeyboardInterrupt:
        return service.left_behind("job group", group.id, jobs, arguments)
    if arguments.out is not None and group.best is not None:
        submit.download(client, client.job(group.best), arguments.out)
    if arguments.json:
        service.print_json(asdict(group))
    else:
        _show(group)
    return service.REFUSED if group.best is None else service.DONE


def option_sets(varied: list[str], whole: list[str]) -> list[Json]:
    """All combinations of the values that vary, and the sets that are given as a whole.

    Raises:
        ValueError: an argument cannot be understood.
    """
    axes: list[list[tuple[str, Any]]] = []
    for text in varied:
        name, sign, values = text.partition("=")
        if not (name and sign and values):
            raise ValueError(f"--vary: expected OPTION=A,B,..., found {text!r}")
        axes.append([(name, _value(value)) for value in values.split(",")])
    sets = [dict(combination) for combination in itertools.product(*axes)] if axes or not whole else []
    for text in whole:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"--set: expected a JSON object, found {text!r}: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"--set: expected a JSON object, found {text!r}")  # noqa: TRY004  of the text
        sets.append(found)
    return sets


def _value(text: str) -> Any:
    """A number, truth or null as JSON has them; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _constraints(arguments: argparse.Namespace) -> Json:
    given = {
        "seconds": arguments.max_seconds,
        "peak_bytes": arguments.max_memory,
        "difference": arguments.max_difference,
    }
    return {name: value for name, value in given.items() if value is not None}


def _watch(client: Client, group: Group, console: Any) -> Group:
    """Wait for the group with a bar of the jobs that are over."""
    from app.cli.console import progress_bar

    with progress_bar(console) as bars:
        task = bars.add_task("jobs", total=len(group.jobs))
        while True:
            over = sum(group.counts.get(state, 0) for state in ("succeeded", "failed", "cancelled"))
            bars.update(task, completed=over)
            if group.is_over:
                return group
            time.sleep(_LOOK_SECONDS)
            group = client.group(group.id)


def _show(group: Group) -> None:
    from app.cli.console import milliseconds, size

    headings = ("rank", "target", "options", "latency", "memory", "difference", "job")
    rows = [
        (
            job["rank"] or "-",
            job["target"],
            " ".join(f"{name}={value}" for name, value in job["options"].items()) or "-",
            milliseconds(job["seconds"]),
            "-" if job["peak_bytes"] is None else size(job["peak_bytes"]),
            "-" if job["difference"] is None else f"{job['difference']:.1e}",
            job["job"],
            job["beside"] or "-",
            "; ".join(job["unmet"]),
        )
        for job in sorted(group.jobs, key=lambda job: (job["rank"] is None, job["rank"] or 0))
    ]
    service.print_table((*headings, "beside other runtimes", "why not"), rows)
