"""Broken uploads: whatever comes, the service answers, does not grow, and loses no worker.

`python -m tests.api.fuzz` sends 20,000 mutations of small models and 300 corruptions of each
development model to a service with the real engine, and prints what came of them; the test suite
takes a sample. Uploads go one after the other over two connections, and stop by themselves.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import onnx
import psutil

from tests.jobs.service import ROOT, Served, serve

CLIENTS = 2


@dataclass
class Findings:
    """What came of the uploads."""

    answers: Counter[int] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    grown_bytes: int = 0
    lost_workers: int = 0
    seconds: float = 0.0


def seeds() -> list[bytes]:
    """Small models of different kinds, to mutate."""
    texts = (
        "<ir_version: 10, opset_import: ['' : 21]> g (float[1, 4] x) => (float[1, 4] y) { y = Relu (x) }",
        "<ir_version: 10, opset_import: ['' : 21]> g (float[N, 3] x, float[3, 2] w) => (float[N, 2] y) "
        "{ z = MatMul (x, w) y = Softmax <axis = 1> (z) }",
        "<ir_version: 10, opset_import: ['' : 21]> g (float[2] x, bool c) => (float[2] y) { y = If (c) "
        "<then_branch = a () => (float[2] p) { p = Neg (x) }, else_branch = b () => (float[2] q) { q = Abs (x) }> }",
        "<ir_version: 10, opset_import: ['' : 21]> g (float[1, 3, 8, 8] x) => (float[1, 2, 6, 6] y) "
        "<float[2, 3, 3, 3] w> { y = Conv <kernel_shape = [3, 3], pads = [0, 0, 0, 0]> (x, w) }",
    )
    models = [onnx.parser.parse_model(text.replace("'", '"')) for text in texts]
    weight = onnx.numpy_helper.np.zeros((2, 3, 3, 3), "float32")
    del models[3].graph.initializer[:]
    models[3].graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return [model.SerializeToString() for model in models]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """The bytes after a few of: bits flipped, a part cut, doubled or overwritten, a number made huge."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) or 1)
        size = chance.randint(1, 16)
        kind = chance.randrange(6)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size] * chance.randint(1, 8)
        elif kind == 3:
            found[at : at + size] = chance.randbytes(size)
        elif kind == 4:
            found[at:at] = b"\xff" * chance.randint(1, 9) + b"\x01"
        else:
            del found[at:]
    return bytes(found)


def mutations(number: int, chance: random.Random) -> Iterator[bytes]:
    """Mutations of the small models, in turn."""
    small = seeds()
    for i in range(number):
        yield mutated(small[i % len(small)], chance)


def corruptions(paths: list[Path], number: int, chance: random.Random) -> Iterator[bytes]:
    """Corruptions of models, each as often."""
    for path in paths:
        content = path.read_bytes()
        for _ in range(number):
            yield mutated(content, chance)


def send(service: Served, uploads: Iterator[bytes], *, inspected: float) -> Findings:
    """Upload all, and look at a share of the models until they were inspected."""
    found, lock = Findings(), threading.Lock()
    api = _api(service)
    workers = _workers(service)
    before, began = api.memory_info().rss, time.monotonic()

    def one(client: httpx.Client, content: bytes, chance: random.Random) -> None:
        answer = client.post("/v1/models", content=content)
        found.answers[answer.status_code] += 1
        if answer.status_code >= 500:
            found.failures.append(f"{answer.status_code} {answer.text[:200]} {content[:100].hex()}")
        if answer.status_code in (200, 201) and chance.random() < inspected:
            model = client.get(f"/v1/models/{answer.json()['id']}", params={"wait": 60}).json()
            found.states[model["code"] or model["state"]] += 1
            if model["code"] in ("internal-error", "child-crashed", "worker-crashed", "time-limit"):
                found.failures.append(f"{model['code']} {model['detail'][:200]} {content[:2000].hex()}")

    def work(number: int) -> None:
        chance = random.Random(number)
        with httpx.Client(base_url=service.http.base_url, timeout=120.0) as client:
            while True:
                with lock:
                    content = next(uploads, None)
                if content is None:
                    return
                one(client, content, chance)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.seconds = time.monotonic() - began
    found.grown_bytes = api.memory_info().rss - before
    found.lost_workers = len(workers - _workers(service)) + service.log().count("started again")
    return found


def _api(service: Served) -> psutil.Process:
    for part in psutil.Process(service.process.pid).children():
        if any(c.status == "LISTEN" for c in part.net_connections()):
            return part
    raise AssertionError("no process listens")


def _workers(service: Served) -> set[int]:
    return {p.pid for p in psutil.Process(service.process.pid).children() if p.children()}


def report(name: str, found: Findings) -> str:
    """What was found, in a few lines."""
    return "\n".join(
        (
            f"{name}: {found.answers.total()} uploads in {found.seconds:.0f} s",
            f"  answers: {dict(sorted(found.answers.items()))}",
            f"  inspected: {dict(found.states)}",
            f"  the API grew by {found.grown_bytes / 2**20:.0f} MiB, {found.lost_workers} workers were lost",
            f"  failures: {found.failures[:5] or 'none'}",
        )
    )


def main() -> int:
    """Send all; the exit code tells whether nothing went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--corruptions", type=int, default=300, help="of each development model")
    parser.add_argument("--inspected", type=float, default=0.05, help="share whose inspection is awaited")
    parser.add_argument("--largest", type=int, default=64 << 20, help="byte; larger models are left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "data" / "models")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    paths = sorted(p for p in arguments.models.glob("*.onnx") if p.stat().st_size <= arguments.largest)
    failed = False
    with tempfile.TemporaryDirectory() as place:
        limits = {"max_model_bytes": 256 << 20, "claim_seconds": 5.0, "retain_models_seconds": 30.0}
        with serve(Path(place), engine="app.engine", **limits) as service:
            for name, uploads in (
                ("mutations", mutations(arguments.mutations, chance)),
                ("corruptions", corruptions(paths, arguments.corruptions, chance)),
            ):
                found = send(service, uploads, inspected=arguments.inspected)
                print(report(name, found), flush=True)
                failed |= bool(found.failures or found.lost_workers or found.grown_bytes > 200 << 20)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
