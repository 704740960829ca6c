"""`stowplan run-operator`: run one operator on tensors, show what computed it and how long that takes."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from app.cli import service
from app.client import Client

SHOWN = 8  # elements of an output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An operator, its operands and attributes, and what may run it."""
    parser.add_argument("op", help="operator, such as Conv")
    parser.add_argument("--domain", default="", help="of the operator (default: that of ONNX)")
    parser.add_argument("--opset", type=int, help="of the domain")
    parser.add_argument(
        "--tensor", action="append", default=[], metavar="FILE.npy", help="next input; repeatable, in order"
    )
    parser.add_argument(
        "--constant", action="append", type=int, default=[], metavar="N", help="input N is a weight"
    )
    parser.add_argument(
        "--attribute", action="append", default=[], metavar="NAME=JSON", help="such as pads=[1,1,1,1]"
    )
    parser.add_argument("--outputs", type=int, help="how many (default: the fewest that are allowed)")
    parser.add_argument("--backend", action="append", default=[], help="in order of preference; repeatable")
    parser.add_argument("--implementation", help="a row by name, such as conv.implicit_gemm")
    parser.add_argument("--threads", type=int, default=1, help="threads of the executor (default: 1)")
    service.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit codes as `app.cli.service` has them."""
    return service.ask(arguments, _run, timeout=600.0)


def _run(client: Client, arguments: argparse.Namespace) -> int:
    answer = client.run_operator(**_request(arguments))
    if arguments.json:
        service.print_json(answer)
    else:
        print("\n".join(_told(answer)))
    return service.DONE


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    inputs = [_tensor(Path(path)) for path in arguments.tensor]
    for number in arguments.constant:
        if not 0 <= number < len(inputs):
            raise ValueError(f"--constant {number}: there are inputs 0 to {len(inputs) - 1}")
        inputs[number]["constant"] = True
    as_given = ("op", "domain", "opset", "outputs", "implementation")
    return {name: getattr(arguments, name) for name in as_given} | {
        "attributes": dict(_attribute(text) for text in arguments.attribute),
        "inputs": inputs,
        "options": {"threads": arguments.threads, "backends": arguments.backend},
    }


def _tensor(path: Path) -> dict[str, Any]:
    import numpy as np

    array = np.load(path, allow_pickle=False)
    return {
        "dtype": "string" if array.dtype.kind == "U" else array.dtype.name,
        "shape": list(array.shape),
        "data": [_element(v) for v in array.reshape(-1).tolist()],
    }


def _element(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _attribute(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"--attribute: expected NAME=JSON, found {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value  # a string without quotes


def _told(answer: dict[str, Any]) -> list[str]:
    lines = []
    for output in answer["outputs"]:
        shown = ", ".join(str(v) for v in output["data"][:SHOWN])
        more = ", …" if len(output["data"]) > SHOWN else ""
        lines.append(f"{output['name']}: {output['dtype']}{output['shape']} [{shown}{more}]")
    for row in answer["decisions"]:
        lines.append(f"{row['op']}: {row['chosen']} on {row['backend']}; {row['reason']}")
        lines += [f"  not {a['name']} ({a['backend']}): {a['reason']}" for a in row["alternatives"]]
    difference = answer["difference"]
    far = "unknown" if difference is None else f"{difference:.2g} of the largest element"
    return [
        *lines,
        f"{answer['seconds'] * 1e6:.3g} us; difference from the reference: {far}",
        *answer["notes"],
    ]
