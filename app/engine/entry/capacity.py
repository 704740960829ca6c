"""The capacity of a model on this machine: measured runs, predictions for others, and a load to verify."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.entry.served_model import ServedModel
from app.engine.planning.capacity import choice, load
from app.engine.planning.capacity.choice import Bound, Candidate
from app.engine.planning.capacity.configuration import configurations, steps
from app.engine.planning.capacity.http import HttpCosts
from app.engine.planning.capacity.queueing import Prediction, arrivals, predicted
from app.engine.planning.capacity.run_times import MeasuredRuns, runs_to_measure, under_load
from app.engine.planning.capacity.study import Study
from app.engine.planning.heartbeat import resident_bytes
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.memory import placed
from app.engine.runtime.inputs import tensors
from app.engine.types.errors import EngineError, InputError
from app.engine.types.options import Bindings, Options

Json = dict[str, Any]
SIZES = (1, 2, 4, 8)  # requests of a run for which configurations are considered
_LOAD_SECONDS = 5.0  # of a load that verifies: run times 2 % off are a 99th percentile 10 % off
_ENOUGH = 100  # requests of it, below which its percentiles are a few requests
_FEWEST = 20  # where there is no time for more
_SLOWER = 0.95  # of the rate of a load that did not meet the bound: the next one at most
_LOADS = 3  # at most
_GAIN = 0.5  # time of a run of many requests over that of as many runs, which none falls below
_DELAY = 0.1  # share of the bound on latency that a request may wait for others of its batch
_SHARED = "threads of a run would share cores with API and client: one of them waits, and so do the others"
_MEASURING = 0.6  # share of the time to answer in, after which nothing more is measured


def capacity(
    path: Path,
    options: Options,
    bindings: Bindings,
    request: Mapping[str, Any],
    folder: Path,
    *,
    kernels: Path,
    external: Mapping[str, Path],
    progress: Callable[[str, int, int], None],
) -> Json:
    """The deployment of a job's model that answers most requests, and how many: JSON of `CapacityAnswer`.

    Args:
        path: the ONNX file.
        options: of the job.
        bindings: of the job.
        request: `percentile` and `seconds` bound the latency and `memory_bytes` the memory, None where they
            do not; `answer_seconds` is the time to answer in. With `http`, rows of `HttpCosts.at`, all is as
            a client over HTTP on this machine sees it; without, as the process of the model does.
        folder: where packed weights are kept meanwhile.
        kernels: folder of compiled kernels and of timings.
        external: files of external data by the name the model gives them.
        progress: called with phase, done and total.

    Raises:
        EngineError: the model cannot be used, or the shapes of its inputs are not known.
    """
    began = time.monotonic()
    end = began + request["answer_seconds"]
    progress("benchmark: measure", 0, 3)
    files = {"kernels": kernels, "external": external, "weights": folder / "weights"}
    study, cores = _study(path, options, bindings, files, began + _MEASURING * (end - began))
    study.costs = _costs(study, options.threads, request.get("http"))
    bound = None if request["seconds"] is None else Bound(request["percentile"], request["seconds"])
    notes = list(_measured(study, cores, options.threads, bound))
    progress("benchmark: predict", 1, 3)
    process = study.other_bytes()
    rows = _candidates(study, cores, options.threads, bound, (process, request["memory_bytes"]))
    found = choice.chosen(rows)
    answer = {"cores": cores, "shapes": {k: list(v) for k, v in study.shapes.items()}, "chosen": None}
    answer["http"] = None if study.costs is None else asdict(study.costs)
    answer |= _predictions(rows, None if found is None else found[0], bound)
    progress("benchmark: verify", 2, 3)
    if found is None:
        notes.append("no configuration meets the bounds; the list says why each does not")
    else:
        verified, more = _verified(study, *found, bound, end)
        answer["chosen"] = verified | {"memory": _memory(study, found[0], process)}
        notes += more
        if found[0].leaves_no_core:
            notes.append("percentiles may be twice those predicted: API and client have no core of their own")
    progress("benchmark", 3, 3)
    return answer | {"notes": notes, "seconds": time.monotonic() - began}


def _predictions(rows: Sequence[Candidate], found: Candidate | None, bound: Bound | None) -> Json:
    """All configurations, and the curves of some, as JSON."""
    return {
        "configurations": [_told(row, found) for row in sorted(rows, key=lambda row: row.configuration)],
        "curves": [
            {**row.configuration.deployment(), "points": [choice.told(p) for p in choice.curve(row, bound)]}
            for row in choice.front(rows)
        ],
    }


def _study(
    path: Path, options: Options, bindings: Bindings, files: Mapping[str, Any], end: float
) -> tuple[Study, int]:
    """A study of the model on the cores of this process."""
    one_shape = replace(bindings, region=None)

    @cache
    def model(threads: int) -> ServedModel:
        own = threads == options.threads
        return ServedModel(path, replace(options, threads=threads), one_shape, tune=own, **files)

    shapes = model(options.threads).first
    if shapes is None:
        raise InputError(
            "capacity is that of one shape, and the job does not know the shapes of all inputs: "
            "give them when the model is optimized",
            pointer="/job",
        )

    def inputs(program: object) -> dict[str, object]:
        assert isinstance(program, Executor)
        compilation = program.program.compilation
        drawn = tensors(compilation, bindings, options.seed)
        given = {value.name or "": drawn[value.name or ""] for value in compilation.graph.inputs}
        # A request lies on cache lines in the process of a deployment.
        return {n: placed(a) if isinstance(a, np.ndarray) else a for n, a in given.items()}

    cores = len(os.sched_getaffinity(0))
    most = {threads: cores // threads for threads in steps(cores, options.threads)}
    most.setdefault(options.threads, 1)  # of a job with more threads than there are cores
    return Study(model, shapes, inputs, most, end, lambda: _packed(files["weights"])), cores


def _costs(study: Study, threads: int, rows: Sequence[Mapping[str, float]] | None) -> HttpCosts | None:
    """Processor time of a request of the study over HTTP; None without rows."""
    if rows is None:
        return None
    program = study.programs(threads, 1)[0]
    inputs = study.inputs(program)
    program.lend(inputs)
    program.step()
    sizes = (sum(np.asarray(array).nbytes for array in found.values()) for found in (inputs, program.peek()))
    return HttpCosts.at(rows, *sizes)


def _packed(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.weights"))


def _measured(study: Study, cores: int, threads: int, bound: Bound | None) -> Iterator[str]:
    """Measure runs of single requests, then of many, while there is time; yields what was left out."""
    study.measure((1, threads, 1))
    for run in runs_to_measure(cores, steps(cores, threads), study.instances):
        if not study.measure(run):
            yield "time was over before all runs of single requests were measured: some are estimated"
            break
    alone = float(study.samples[1, threads, 1].mean())
    sizes = [size for size in SIZES[1:] if bound is None or alone * size * _GAIN <= bound.seconds]
    if not sizes:
        yield "batches are left out: a run of two requests takes longer than the bound"
    elif study.is_over:
        yield "batches are left out: time was over before they could be measured"
    else:
        try:
            study.model(threads).rows_of_outputs(study.shapes, sizes[0])
            for size in dict.fromkeys((sizes[-1], sizes[0])):
                if not study.measure((1, threads, size)):
                    yield f"time was over before runs of {size} requests were measured"
        except EngineError as error:
            yield f"batches are left out: {error.message}"


def _candidates(
    study: Study, cores: int, threads: int, bound: Bound | None, memory: tuple[int, int | None]
) -> list[Candidate]:
    """All configurations, with predictions; `memory` is what the process takes, and what it may take."""
    measured = MeasuredRuns(study.samples, study.outside, study.costs, cores)
    shared = memory[0] + study.packed()
    largest = max(size for _, _, size in study.samples)
    sizes = [size for size in SIZES if size <= largest]
    delays = (0.0,) if bound is None else (0.0, _DELAY * bound.seconds)
    return [
        choice.candidate(
            configuration,
            measured.of(configuration),
            shared + study.own_bytes(configuration),
            measured.are_of(configuration),
            bound,
            memory[1],
        )
        for configuration in configurations(cores, threads, sizes, delays)
    ]


def _verified(
    study: Study, found: Candidate, best: Prediction, bound: Bound | None, end: float
) -> tuple[Json, Sequence[str]]:
    """The chosen configuration under load; where it misses the bound, at lower rates while there is time."""
    configuration, notes = found.configuration, []
    study.keep_only(configuration)
    instances = study.loaded(configuration.instances, configuration.threads, configuration.sizes)
    rate, times = min(best.rate, load.MAX_RATE), found.times
    loads: list[Json] = []
    if rate < best.rate:
        notes.append(
            f"a load sends at most {load.MAX_RATE:g} requests per second: what is above is predicted only"
        )
    for _ in range(_LOADS):
        left = end - time.monotonic()
        if loads and left < _ENOUGH / rate:
            notes.append("time was over before a load at a lower rate was tried")
            break
        count = round(max(_FEWEST, min(max(_ENOUGH, rate * _LOAD_SECONDS), rate * left)))
        if count < _ENOUGH:
            notes.append(f"percentiles of the load are those of {count} requests: there was no time for more")
        moments = arrivals(rate, count)
        offered = load.offered(instances, moments, configuration, study.costs)
        times = under_load(found.times, offered)
        values = np.percentile(offered.seconds, list(best.percentiles)).tolist()
        latency = dict(zip(best.percentiles, values, strict=True))
        reached = Prediction(rate, count / float((moments + offered.seconds).max()), latency)
        loads.append(choice.told(reached) | {"requests": count, "met": bound is None or bound.holds(reached)})
        if loads[-1]["met"]:
            break
        slower = choice.highest_rate(times, configuration, bound)
        rate = min(rate * _SLOWER, rate if slower is None else slower.rate)
    else:
        notes.append("no load met the bound: the machine has other work, or predictions are too good")
    tried = loads[-1]
    at_rate = predicted(tried["rate"], times, configuration, tuple(best.percentiles))
    return {
        "deployment": configuration.deployment(),
        "verified": tried["met"],
        "rate": tried["rate"],
        "predicted": choice.told(at_rate),
        "loads": loads,
    }, notes


def _memory(study: Study, found: Candidate, process: int) -> Json:
    """Bytes of a process of the chosen deployment, and of this one, which has its programs only."""
    packed, own = study.packed(), study.own_bytes(found.configuration)
    return {
        "process_bytes": process,
        "weights_bytes": packed,
        "instances_bytes": own,
        "predicted_bytes": process + packed + own,
        "measured_bytes": resident_bytes()[0],
    }


def _told(row: Candidate, found: Candidate | None) -> Json:
    """A configuration as JSON, with its prediction at the highest rate that meets the bound."""
    is_passed_over = row.shares_cores and found is not None and not found.shares_cores
    return {
        **row.configuration.deployment(),
        "run_times": "measured" if row.measured else "estimated",
        "memory_bytes": row.nbytes,
        "best": None if row.best is None else choice.told(row.best),
        "rejection": row.rejection or _SHARED * is_passed_over,
        "is_chosen": row is found,
    }
