"""A small client of the REST API; it imports nothing of the service.

with Client("http://127.0.0.1:8000") as client:
    job = client.submit(client.upload("model.onnx").id, input_shapes={"x": [1, 3, 224, 224]})
    client.wait(job.id)  # or `events`, as they happen
    client.download(job.id, "optimized.onnx", "optimized.onnx")
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

if TYPE_CHECKING:
    import httpx  # a tenth of a second, which commands without a service do not wait for

DEFAULT_URL = "http://127.0.0.1:8000"
TERMINAL = ("succeeded", "failed", "cancelled")
_PIECE = 1 << 20  # byte
_MOST_NAME = 255  # characters
_PLAIN = re.compile(r"[\x00-\x1f\x7f]")  # characters that no name has
_WAIT = 20  # seconds that one request waits at most
_RECONNECTS = 5

Json = dict[str, Any]


class ServiceFailureError(Exception):
    """An answer that is a problem, with its stable `code`."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{problem.get('detail', '')} [{problem.get('code', '')}]")
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail", ""))
        self.status = int(problem.get("status", 0))
        self.errors = tuple(problem.get("errors", ()))


class UnreachableError(Exception):
    """No service answers at the address."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the service knows it; `report` is None until it was inspected, `origin` for an upload."""

    id: str
    name: str
    state: str
    report: Json | None
    code: str | None
    detail: str | None
    origin: Json | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was when the service was asked."""

    id: str
    group: str
    state: str
    model: str
    model_name: str
    target: str
    phase: str
    done: int
    total: int
    artifacts: tuple[str, ...]
    summary: Json | None
    code: str | None
    detail: str | None
    pointer: str | None
    labels: Json
    cached_from: str | None
    created: float
    started: float | None
    finished: float | None

    @property
    def is_over(self) -> bool:
        """True if it has reached a terminal state."""
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that were asked for together, compared; each of `jobs` as `getJobGroup` of the API has it.

    `best` is the job with the least of the objective among those that keep the constraints.
    """

    id: str
    state: str
    model: str
    objective: str
    constraints: Json
    counts: Json
    jobs: tuple[Json, ...]
    best: str | None
    best_by_target: Json

    @property
    def is_over(self) -> bool:
        """True if all its jobs have ended."""
        return self.state == "done"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job: `kind` is `state` or `progress`."""

    id: int
    kind: str
    data: Json


@dataclass(frozen=True, slots=True)
class Deployment:
    """One version of a deployed model; `url` is its address under `/v2`."""

    name: str
    version: str
    job: str
    model: str
    owner: str
    instances: int
    state: str
    detail: str | None
    programs: int
    url: str


T = TypeVar("T", Job, Group)
Answer = TypeVar("Answer", Model, Job, Group, Deployment)


class Client:
    """Talks to one service, with a key where it asks for one.

    Every method raises `ServiceFailureError` for an answer that is a problem, and `UnreachableError` when
    there is no answer.
    """

    def __init__(self, url: str = DEFAULT_URL, *, key: str | None = None, timeout: float = 60.0) -> None:
        import httpx

        self._url = url.rstrip("/")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        hooks = {"response": [_refuse]}
        self._http = httpx.Client(base_url=self._url, headers=headers, timeout=timeout, event_hooks=hooks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def put_blob(self, path: Path | str) -> str:
        """Upload a file under its hash unless it is there, and return the hash."""
        with Path(path).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            address = f"/v1/blobs/sha256/{sha256}"
            try:
                self._send("HEAD", address)
            except ServiceFailureError as error:
                if error.status != 404:
                    raise
                file.seek(0)
                self._send("PUT", address, content=_pieces(file))
        return sha256

    def upload(
        self, path: Path | str, external: Mapping[str, Path | str] | None = None, *, name: str | None = None
    ) -> Model:
        """Upload a model; `external` gives files of external data by the location that the graph names.

        It gets a name, that of the file by default, unless it is there already and has one.
        """
        called = _PLAIN.sub("_", name or Path(path).name)[:_MOST_NAME]
        if not external:
            with Path(path).open("rb") as file:
                how = {"params": {"name": called}, "headers": {"content-type": "application/octet-stream"}}
                return _read(Model, self._json("POST", "/v1/models", content=_pieces(file), **how))
        manifest = {
            "name": called,
            "model": self.put_blob(path),
            "external_data": {name: self.put_blob(file) for name, file in external.items()},
        }
        return _read(Model, self._json("POST", "/v1/models", json=manifest))

    def model(self, model_id: str, *, wait: float = 0.0) -> Model:
        """A model; with `wait`, once it was inspected or that many seconds have passed."""
        return _read(Model, self._json("GET", f"/v1/models/{model_id}", params={"wait": wait}))

    def models(self, **filters: Any) -> Iterator[Model]:
        """All models, latest first; filters are `label` and `q`."""
        yield from (_read(Model, row) for row in self._pages("/v1/models", "models", filters))

    def rename_model(self, model_id: str, name: str) -> Model:
        """Give a model another name."""
        return _read(Model, self._json("PATCH", f"/v1/models/{model_id}", json={"name": name}))

    def delete_model(self, model_id: str) -> None:
        """Forget a model."""
        self._send("DELETE", f"/v1/models/{model_id}")

    def validate(self, model_id: str, *, target: str = "host", **request: Any) -> list[Json]:
        """Problems that would stop an optimization; the request's fields are those of `submit`."""
        found = self._json("POST", f"/v1/models/{model_id}/validate", json={"target": target} | request)
        return list(found["problems"])

    def values(self, model_id: str, **filters: Any) -> Iterator[Json]:
        """Values of a model with type and shape, as `getModelValues` has them; the filter is `role`."""
        yield from self._pages(f"/v1/models/{model_id}/values", "values", filters)

    def gradient(self, model_id: str, loss: str, wrt: Sequence[str] | None = None, **more: Any) -> Model:
        """Make the training graph of a model; `more` are fields of `GradientRequest`."""
        body = {"loss": loss, "wrt": None if wrt is None else list(wrt), **more}
        return _read(Model, self._json("POST", f"/v1/models/{model_id}/gradient", json=body))

    def symbol(self, model_id: str, **request: Any) -> Model:
        """Write a model as a symbol of MXNet; `request` are fields of `SymbolRequest`."""
        return _read(Model, self._json("POST", f"/v1/models/{model_id}/symbol", json=request))

    def model_file(self, model_id: str, path: Path | str, name: str = "") -> Path:
        """Write a file of a model to a path: the graph, or that of the name."""
        return self._download(f"/v1/models/{model_id}/file", Path(path), params={"name": name})

    def extract(
        self, model_id: str, outputs: Sequence[str], inputs: Sequence[str] = (), **more: Any
    ) -> Model:
        """A new model that computes `outputs` from `inputs`; `more` takes its `name`."""
        body = {"inputs": list(inputs), "outputs": list(outputs)} | more
        return _read(Model, self._json("POST", f"/v1/models/{model_id}/extract", json=body))

    def compose(
        self, first: str, second: str, connect: Mapping[str, str] | None = None, **more: Any
    ) -> Model:
        """A new model in which inputs of the second are outputs of the first, by their names.

        Without `connect`, where both have the same name; `more` takes `prefix` and `name`.
        """
        body = {"first": first, "second": second, "connect": dict(connect or {})} | more
        return _read(Model, self._json("POST", "/v1/models/compose", json=body))

    def targets(self) -> list[Json]:
        """All targets that jobs may name."""
        return list(self._json("GET", "/v1/targets")["targets"])

    def target(self, name: str) -> Json:
        """One target."""
        return self._json("GET", f"/v1/targets/{name}")

    def describe_target(self, spec: Mapping[str, Any]) -> Json:
        """Keep the description of a machine."""
        return self._json("POST", "/v1/targets", json=dict(spec))

    def submit(self, model_id: str, *, target: str = "host", **request: Any) -> Job:
        """Ask for an optimization for one target.

        `request` takes `input_shapes`, `input_values`, `input_ranges`, `inputs`, `options`, `limits`,
        `labels`, and `reuse=False` for a job that must run even when an equal one has its result.
        """
        return self.submit_all(model_id, [target], **request)[0]

    def submit_all(self, model_id: str, targets: Sequence[str], **request: Any) -> list[Job]:
        """Ask for an optimization for several targets: one job each."""
        body = {"model": model_id, "targets": list(targets)} | request
        # The same key again, after a lost answer, gives the same jobs.
        found = self._json("POST", "/v1/jobs", json=body, headers={"idempotency-key": secrets.token_hex(16)})
        return [_job(j) for j in found.get("jobs", [found])]

    def sweep(
        self,
        model_id: str,
        option_sets: Sequence[Mapping[str, Any]],
        *,
        targets: Sequence[str] = ("host",),
        objective: str = "latency",
        constraints: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> Group:
        """Ask for an optimization with each option set on each target: a group of jobs.

        `constraints` are `seconds`, `peak_bytes` and `difference`, each the most that the best job may
        have; `request` is as in `submit`, its `options` common to all sets.
        """
        body = {"model": model_id, "targets": list(targets), "option_sets": [dict(s) for s in option_sets]}
        body |= {"objective": objective, "constraints": dict(constraints or {})} | request
        headers = {"idempotency-key": secrets.token_hex(16)}
        return _group(self._json("POST", "/v1/job-groups", json=body, headers=headers))

    def group(self, group_id: str, *, wait: float = 0.0) -> Group:
        """A group; with `wait`, once all its jobs are over or that many seconds have passed."""
        return _group(self._json("GET", f"/v1/job-groups/{group_id}", params={"wait": wait}))

    def wait_group(self, group_id: str, *, timeout: float | None = None) -> Group:
        """The group once all its jobs are over.

        Raises:
            TimeoutError: they were not over in time.
        """
        return self._until_over(lambda left: self.group(group_id, wait=left), "job group", timeout)

    def run_operator(self, op: str, **request: Any) -> Json:
        """Run one operator alone; `request` and the answer as `runOperator` of the API has them."""
        return self._json("POST", "/v1/operators/run", json={"op": op} | request)

    def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """A job; with `wait`, once it is over or that many seconds have passed."""
        return _job(self._json("GET", f"/v1/jobs/{job_id}", params={"wait": wait}))

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """All jobs, latest first; filters are `state`, `target`, `model`, `group`, `label` and `q`."""
        yield from map(_job, self._pages("/v1/jobs", "jobs", filters))

    def _pages(self, address: str, rows: str, filters: Json) -> Iterator[Json]:
        cursor: str | None = None
        while True:
            page = self._json("GET", address, params=filters | ({"cursor": cursor} if cursor else {}))
            yield from page[rows]
            cursor = page["next"]
            if cursor is None:
                return

    def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it is over.

        Raises:
            TimeoutError: it was not over in time.
        """
        return self._until_over(lambda left: self.job(job_id, wait=left), "job", timeout)

    def _until_over(self, look: Callable[[float], T], what: str, timeout: float | None) -> T:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            found = look(_WAIT if end is None else min(_WAIT, max(0.0, end - time.monotonic())))
            if found.is_over:
                return found
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{what} {found.id} is {found.state} after {timeout:g} s")

    def events(self, job_id: str, *, after: int = 0) -> Iterator[Event]:
        """Events of a job until it is over; a lost connection is resumed where it ended."""
        import httpx

        last, failures = after, 0
        while True:
            before = last
            try:
                for event in self._events_once(job_id, last):
                    last = event.id
                    yield event
                    if event.kind == "state" and event.data["state"] in TERMINAL:
                        return
                if last == before:
                    return
            except httpx.TransportError as error:
                failures = 0 if last > before else failures + 1
                if failures > _RECONNECTS:
                    raise UnreachableError(f"no service answers at {self._url}: {error}") from error
                time.sleep(0.2 * failures)

    def _events_once(self, job_id: str, last: int) -> Iterator[Event]:
        headers = {"last-event-id": str(last), "accept": "text/event-stream"}
        with self._http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(":")
                if name:
                    fields[name] = value.removeprefix(" ")
                elif line == "":
                    if "data" in fields:
                        yield Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
                    fields = {}

    def retry(self, job_id: str) -> Job:
        """Ask again what a job asked that is over: a new job."""
        return _job(self._json("POST", f"/v1/jobs/{job_id}/retry"))

    def export(self, job_id: str, formats: list[str], *, name: str = "") -> Job:
        """Ask for libraries (`c`, `wheel`, `ort`) of what a job planned that is over: a new job."""
        return _job(self._json("POST", f"/v1/jobs/{job_id}/export", json={"formats": formats, "name": name}))

    def cancel(self, job_id: str) -> Job:
        """Ask for the end of a job."""
        return _job(self._json("POST", f"/v1/jobs/{job_id}/cancel"))

    def delete_job(self, job_id: str) -> None:
        """Forget a job that is over, and its artifacts."""
        self._send("DELETE", f"/v1/jobs/{job_id}")

    def artifact(self, job_id: str, name: str) -> bytes:
        """An artifact's bytes."""
        return self._send("GET", f"/v1/jobs/{job_id}/artifacts/{name}").content

    def deploy(self, job_id: str, name: str, *, version: int | None = None, **serving: Any) -> Deployment:
        """Let a result answer under a name; `serving` are fields of `DeployRequest`."""
        body = {"name": name, "version": version, **serving}
        return _read(Deployment, self._json("POST", f"/v1/jobs/{job_id}/deploy", json=body))

    def capacity(self, job_id: str, **bounds: Any) -> Json:
        """How to deploy a result for the most requests; `bounds` are fields of `CapacityRequest`."""
        return self._json("POST", f"/v1/jobs/{job_id}/capacity", json=bounds)

    def deployments(self) -> list[Deployment]:
        """All versions of all deployed models."""
        return [_read(Deployment, row) for row in self._json("GET", "/v1/deployments")["deployments"]]

    def wait_until_ready(
        self, name: str, version: str | None = None, *, timeout: float = 120.0
    ) -> Deployment:
        """A version of a deployed model, by default the latest, once it answers or has failed.

        Raises:
            TimeoutError: it did neither in time.
            LookupError: it is not deployed.
        """
        end = time.monotonic() + timeout
        while True:
            found = [d for d in self.deployments() if d.name == name and version in (None, d.version)]
            if not found:
                raise LookupError(f"nothing is deployed as {name!r}")
            if found[-1].state in ("ready", "failed"):
                return found[-1]
            if time.monotonic() >= end:
                raise TimeoutError(f"{name!r} is {found[-1].state} after {timeout:g} s")
            time.sleep(0.2)

    def undeploy(self, name: str, *, version: int | None = None) -> None:
        """End a deployed model, or one version of it."""
        self._send("DELETE", f"/v1/deployments/{name}", params={"version": version} if version else {})

    def decisions(self, job_id: str, node: str | None = None) -> list[Json]:
        """Decisions for each step of a job's plan, or for the one that computes a node."""
        params = {} if node is None else {"node": node}
        return list(self._json("GET", f"/v1/jobs/{job_id}/decisions", params=params)["decisions"])

    def download(self, job_id: str, name: str, path: Path | str) -> Path:
        """Write an artifact to a file."""
        return self._download(f"/v1/jobs/{job_id}/artifacts/{name}", Path(path))

    def _download(self, address: str, place: Path, **how: Any) -> Path:
        with self._http.stream("GET", address, **how) as answer, place.open("wb") as file:
            for piece in answer.iter_bytes(_PIECE):
                file.write(piece)
        return place

    def _json(self, method: str, address: str, **how: Any) -> Json:
        return dict(self._send(method, address, **how).json())

    def _send(self, method: str, address: str, **how: Any) -> "httpx.Response":
        import httpx

        try:
            return self._http.request(method, address, **how)
        except httpx.TransportError as error:
            raise UnreachableError(f"no service answers at {self._url}: {error}") from error


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _refuse(answer: "httpx.Response") -> None:
    """Raise the problem that an answer is."""
    if answer.status_code < 400:
        return
    answer.read()
    try:
        problem = dict(answer.json())
    except ValueError:
        detail = f"{answer.status_code} {answer.reason_phrase}, with a body that is no problem"
        problem = {"status": answer.status_code, "code": "not-a-problem", "detail": detail}
    raise ServiceFailureError(problem)


def _read(kind: type[Answer], found: Json) -> Answer:
    """The fields of an answer that its class has."""
    return kind(**{field.name: found[field.name] for field in fields(kind)})


def _group(found: Json) -> Group:
    return _read(Group, found | {"jobs": tuple(found["jobs"])})


def _job(found: Json) -> Job:
    artifacts = tuple(a["name"] for a in found["artifacts"])
    return _read(Job, found | found["progress"] | {"artifacts": artifacts})
