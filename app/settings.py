"""Settings of the service: folders, addresses, limits. The only reader of the environment.

Each field of `Settings` but `engine` is read from `STOWPLAN_<NAME>`. Processes of one service hand
the settings on as JSON, so that all of them see what the first one read.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

DEFAULT_PORT = 8000
PREFIX = "STOWPLAN_"
# Set by code only: which module does the work is no matter of deployment.
NOT_FROM_ENVIRONMENT = ("engine",)


_POSITIVE = (
    "workers",
    "max_attempts",
    "max_model_bytes",
    "max_json_bytes",
    "job_memory_bytes",
    "max_jobs_per_key",
    "max_running_per_key",
    "max_requests_per_key",
    "max_connections",
    "max_deployments",
    "max_infer_bytes",
    "max_infer_waiting",
    "max_programs",
    "executor_memory_bytes",
)
_SECONDS = ("job_seconds", "inspect_seconds", "infer_seconds", "head_seconds", "silence_seconds")
_PATHS = ("data", "benchmark_lock")
_LOG_FORMATS = ("text", "json")
LOG_TOPICS = ("passes", "choices", "memory", "kernels")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}

# Settings with a condition on their values, and how an error tells it.
_RANGES: tuple[tuple[Sequence[str], Callable[[Any], object], str], ...] = (
    (("port",), lambda number: 0 <= number < 65536, "0 to 65535"),
    (_POSITIVE, lambda number: number >= 1, "at least 1"),
    (_SECONDS, lambda seconds: seconds > 0, "a positive number"),
    (("blobs",), re.compile(r"(s3://[^/]+(/[^?#]*)?)?").fullmatch, "s3://bucket/prefix"),
    (("log_format",), _LOG_FORMATS.__contains__, ", ".join(_LOG_FORMATS)),
    (("log_level",), _LOG_LEVELS.__contains__, ", ".join(_LOG_LEVELS)),
    (("root_path",), re.compile(r"((/[A-Za-z0-9._~-]+)+)?").fullmatch, "a path such as /stowplan"),
)


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, what was expected and what was found."""


_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Shares of the machine's memory: of all jobs that run at once, and of all deployed models. The rest is for
# the API, the workers, and the system.
_JOBS_SHARE, _SERVING_SHARE = 1 / 2, 3 / 8


def machine_memory() -> int:
    """Bytes of memory that this machine has, or that its container may use."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is "max"
            found.append(int(Path(path).read_text()))
    return min(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one service.

    Attributes:
        data: the one folder that everything durable lives under.
        host: address that the API listens on.
        port: port that the API listens on.
        database_url: of the database; empty means SQLite files in the data folder.
        blobs: where uploads and artifacts are, such as `s3://bucket/prefix`; empty means the data folder.
        blob_copies_bytes: of a remote store that a machine keeps copies of.
        workers: worker processes that `serve` starts; each runs one job at a time.
        max_model_bytes: largest blob or model accepted.
        max_json_bytes: largest JSON body accepted.
        max_artifact_bytes: largest file a job may write.
        job_seconds: hard time limit of one job, and the most that a job may ask for.
        job_memory_bytes: hard memory limit of one job, and the most that a job may ask for; 0 divides half of
            the machine's memory among the workers.
        inspect_seconds: hard time limit of an inspection or a validation.
        wait_for_target_seconds: how long a job may wait for a worker on its target.
        claim_seconds: how long an uploaded blob is kept that nothing refers to.
        dead_seconds: silence after which a worker counts as dead, and its jobs go to others.
        max_attempts: starts of one job; one whose process or worker dies each time is at fault itself.
        warm_children: processes that each worker keeps ready for its next job.
        drain_seconds: how long a worker that stops lets its job run on before it gives it back.
        benchmark_lock: file that is locked while a job is measured; the same for all services of a machine.
        queues: queues that workers serve: `cpu`, `inspect`, `target:<fingerprint>`; empty means all that
            this machine can serve.
        require_keys: ask for a key even where the API listens on loopback only, as behind a proxy.
        allowed_hosts: names besides those of loopback under which the API answers without keys.
        root_path: prefix that a proxy takes off the addresses.
        cors_origins: origins whose pages may use the API, such as `https://example.org`.
        max_jobs_per_key: unfinished jobs that an owner of keys may have.
        max_running_per_key: jobs of one owner that run at once.
        max_requests_per_key: requests of one key that are answered at once.
        max_connections: open at once; beyond it the one that waits longest for a request is closed.
        head_seconds: in which the head of a request must come.
        silence_seconds: that a client may send nothing of a body, or take nothing of an answer.
        max_bytes_per_key: bytes of uploads and artifacts that an owner of keys may hold.
        reserve_bytes: free space of the disk below which uploads are refused.
        max_deployments_per_key: versions of deployed models that an owner may have; 0 turns serving off.
        max_deployments: versions of deployed models of all owners: each has a process on every machine.
        max_infer_bytes: largest body of an inference.
        max_infer_waiting: inferences of one deployed model that wait or run at once.
        max_programs: input shapes that a deployed model keeps compiled.
        infer_seconds: hard time limit of one inference.
        executor_memory_bytes: hard memory limit of the process of a deployed model; 0 divides three eighths
            of the machine's memory among as many as may be deployed.
        retain_jobs_seconds: how long jobs are kept after their end; 0 keeps them.
        retain_models_seconds: how long models are kept after their last use; 0 keeps them.
        log_format: `text` for people, `json` for machines.
        log_level: `debug`, `info`, `warning` or `error`.
        log: topics of the engine whose details are logged, divided by commas: `passes`, `choices`,
            `memory`, `kernels`.
        otlp_endpoint: where spans go, as OTLP over HTTP; empty means nowhere.
        engine: module with `inspect`, `validate` and `optimize`.
    """

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    database_url: str = ""
    blobs: str = ""
    blob_copies_bytes: int = 16 * 2**30
    workers: int = 2
    max_model_bytes: int = 8 * 2**30
    max_json_bytes: int = 4 * 2**20
    max_artifact_bytes: int = 16 * 2**30
    job_seconds: float = 1800.0
    job_memory_bytes: int = 0
    inspect_seconds: float = 120.0
    wait_for_target_seconds: float = 24 * 3600.0
    claim_seconds: float = 3600.0
    dead_seconds: float = 15.0
    max_attempts: int = 10
    warm_children: int = 1
    drain_seconds: float = 3.0
    benchmark_lock: Path = field(
        default_factory=lambda: Path(tempfile.gettempdir()) / "stowplan-benchmark.lock"
    )
    queues: tuple[str, ...] = ()
    require_keys: bool = False
    allowed_hosts: tuple[str, ...] = ()
    root_path: str = ""
    cors_origins: tuple[str, ...] = ()
    max_jobs_per_key: int = 1000
    max_running_per_key: int = 16
    max_requests_per_key: int = 64
    max_connections: int = 4096
    head_seconds: float = 10.0
    silence_seconds: float = 20.0
    max_bytes_per_key: int = 64 * 2**30
    reserve_bytes: int = 256 * 2**20
    max_deployments_per_key: int = 8
    max_deployments: int = 8
    max_infer_bytes: int = 64 * 2**20
    max_infer_waiting: int = 32
    max_programs: int = 4
    infer_seconds: float = 30.0
    executor_memory_bytes: int = 0
    retain_jobs_seconds: float = 0.0
    retain_models_seconds: float = 0.0
    log_format: str = "text"
    log_level: str = "warning"
    log: tuple[str, ...] = ()
    otlp_endpoint: str = ""
    engine: str = "app.engine"

    def __post_init__(self) -> None:
        shares = (
            ("job_memory_bytes", _JOBS_SHARE, self.workers),
            ("executor_memory_bytes", _SERVING_SHARE, self.max_deployments),
        )
        for name, share, processes in shares:
            if getattr(self, name) == 0:
                object.__setattr__(self, name, int(machine_memory() * share) // max(1, processes))
        for names, fits, expected in _RANGES:
            for name in names:
                if not fits(found := getattr(self, name)):
                    raise SettingsError(f"{PREFIX}{name.upper()}: expected {expected}, found {found!r}")
        if unknown := sorted(set(self.log) - set(LOG_TOPICS)):
            raise SettingsError(f"{PREFIX}LOG: expected {', '.join(LOG_TOPICS)}, found {unknown[0]!r}")

    @property
    def jobs_database_url(self) -> str:
        """URL of the service's own tables."""
        if not self.database_url:
            return f"sqlite:///{self.data.absolute() / 'stowplan.db'}"
        scheme, _, rest = self.database_url.partition("://")
        return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else self.database_url

    @property
    def queue_database_url(self) -> str:
        """URL of the queue's tables: a file of their own in SQLite, a schema of their own elsewhere."""
        return self.database_url or f"sqlite:///{self.data.absolute() / 'queue.db'}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The settings that `STOWPLAN_*` variables give; the others keep their defaults.

        Raises:
            SettingsError: a value is no number where one is expected, or out of range.
        """
        found = os.environ if environment is None else environment  # noqa: TID251  this is the reader
        given: dict[str, Any] = {}
        for row in fields(cls):
            text = found.get(PREFIX + row.name.upper())
            if text is None or row.name in NOT_FROM_ENVIRONMENT:
                continue
            try:
                given[row.name] = _value(row.type, text)
            except (ValueError, KeyError) as error:
                raise SettingsError(
                    f"{PREFIX}{row.name.upper()}: expected {row.type.__name__}, found {text!r}"  # type: ignore[union-attr]  # other types take any text
                ) from error
        return cls(**given)

    def to_json(self) -> str:
        """All settings, for another process of the same service."""
        return json.dumps(asdict(self) | {name: str(getattr(self, name).absolute()) for name in _PATHS})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote."""
        found: dict[str, Any] = json.loads(text)
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        return cls(**given | {name: Path(found[name]) for name in _PATHS})


# Variables of the interpreter, of libraries and of the system; none of them is a secret.
_OF_JOBS = re.compile(
    r"PATH|HOME|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|VIRTUAL_ENV|PYTHON[A-Z0-9_]*|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|STOWPLAN_(LOG|PARENT)|(NUMBA|OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|CUDA|NVIDIA|OPENVINO|OV|ORT|MALLOC)_[A-Z0-9_]+"
)

_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"  # onnxruntime reports to its maker from the import on
_PARENT = f"{PREFIX}PARENT"  # process that started one of jobs


def is_job_environment() -> bool:
    """True if this process was started without anything that a process of jobs must not know."""
    return all(_OF_JOBS.fullmatch(name) for name in os.environ)  # noqa: TID251  this is the reader


def use_home(folder: Path | str) -> None:
    """Let libraries keep what they keep in the user's folder in another one, which this process may read."""
    os.environ["HOME"] = str(folder)  # noqa: TID251  this is the place for it


@contextmanager
def environment_of_jobs() -> Iterator[None]:
    """Processes that are started meanwhile inherit what `is_job_environment` allows, and no more.

    What a process was started with can be read in it for as long as it lives, whatever it forgets.
    """
    environment = os.environ  # noqa: TID251  this is the reader
    before = dict(environment)
    for name in before:
        if not _OF_JOBS.fullmatch(name):
            del environment[name]
    environment.update({_NO_TELEMETRY: "1", _PARENT: str(os.getpid())})
    try:
        yield
    finally:
        for name in (_NO_TELEMETRY, _PARENT):
            del environment[name]
        environment.update(before)


def parent_of_jobs() -> int:
    """The process that started this one of jobs, which may have ended since; 0 where nobody says."""
    return int(os.environ.get(_PARENT, "0"))  # noqa: TID251  this is the reader


def url_of_client() -> str | None:
    """The address that `STOWPLAN_URL` gives to clients."""
    return os.environ.get(f"{PREFIX}URL") or None  # noqa: TID251  this is the reader


def key_of_client() -> str | None:
    """The key that `STOWPLAN_KEY` gives to clients; a service takes none from there."""
    return os.environ.get(f"{PREFIX}KEY") or None  # noqa: TID251  this is the reader


def described() -> list[tuple[str, str, str]]:
    """Variable, default and meaning of each setting that the environment can give."""
    lines = (Settings.__doc__ or "").partition("Attributes:")[2].splitlines()
    text = " ".join(line.strip() for line in lines)
    found = []
    names = [row.name for row in fields(Settings)]
    for row, following in zip(fields(Settings), [*names[1:], None]):
        if row.name not in NOT_FROM_ENVIRONMENT:
            meaning = text.partition(f" {row.name}: ")[2]
            meaning = meaning.partition(f" {following}: ")[0] if following else meaning
            found.append((PREFIX + row.name.upper(), _shown(row), meaning.strip().rstrip(".")))
    return found


def _shown(row: "Field[Any]") -> str:
    """A default, for people."""
    value = row.default if row.default is not MISSING else getattr(Settings(), row.name)
    if value in ("", ()):
        return "empty"
    return {True: "1", False: "0"}[value] if isinstance(value, bool) else str(value)


def _value(kind: Any, text: str) -> Any:
    """The value that a text means: lists are divided by commas."""
    if kind is bool:
        return _TRUTH[text.strip().lower()]
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return kind(text)
