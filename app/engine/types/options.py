"""Options of an optimization."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from app.engine.types.regions.region import Piece, Region, WeightedPoint
from app.engine.types.storage import DeclaredStorage, StorageKind

Timings = Literal["auto", "measured", "predicted"]
Policy = Literal["f32", "tf32", "bf16", "fp16", "auto"]
Preference = Literal["latency", "memory"]
Semantics = Literal["stowplan", "mxnet-1.9"]
Export = Literal["c", "wheel", "ort", "static"]
Choose = Literal["auto", "first", "measured"]
ErrorMetric = Literal["max", "cosine", "top1"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one job.

    Attributes:
        timings: `measured` runs the program on this machine, `predicted` never does; `auto`
            measures when the target is this machine.
        memory_budget: bytes that the arena may take; None takes the target's.
        fuse: whether neighbouring operators may share a kernel.
        inplace: whether results may take the bytes of an operand that nobody reads again.
        verify: whether to compare with the original model.
        tolerance: largest difference allowed, as a fraction of the output's maximum.
        seed: of the random inputs used where none are given.
        threads: of the executor.
        fast_algorithms: whether products may be computed with fewer multiplications (Winograd,
            Strassen) or from weights in fixed point, where their error, measured on the weights, is far
            inside the tolerance.
        precision: of products in float32 models. `bf16` allows bf16 where the target computes it, and
            the outputs to differ by 1e-2 of their maximum; `tf32` and `fp16` (GPUs only) by 2e-3; `auto`
            takes one of these if `tolerance` is that large. On GPUs, bf16 and fp16 are also what activations
            and weights are stored in.
            Sums are float32. On CPUs, nodes whose rounding moves outputs by more stay float32; where bf16 is
            not applicable, or outputs differ by more all the same, float32 is used and the report says why.
        exact: nodes that stay float32 whatever `precision`: why, by name. What a job finds, see
            `app.engine.planning.mixed_precision`; no request tells it.
        direct: nodes that are computed without fast algorithms: why, by name. Found as `exact` is.
        int16: nodes whose products may be of integers of 16 bits: why, by name. What an error budget chooses;
            no request tells it.
        error_budget: what outputs may differ by from those in float32, as `error_metric` has it; with one,
            each product takes the precision that is fastest by measurement within it, 8 and 4 bits among
            them, see `app.engine.planning.precision`. None computes products as `precision` says.
        error_metric: `max` is the largest difference as a fraction of the output's maximum, `cosine` 1 less
            the cosine of both, `top1` the fraction of rows whose largest element is another.
        autotune: whether implementations are measured on this machine before they are chosen; it
            takes a target that is this machine.
        quick: whether nothing is measured: the plan by predicted times alone, verified; `autotune` and a
            benchmark are left out.
        prefer: `latency` takes the fastest plan that fits the budget; `memory` the smallest arena.
        pareto: whether to look for the plans of which none is both smaller and faster.
        backends: those that may run the graph, in order of preference; empty takes the target's. The
            reference evaluator always comes last, for what none of them can run.
        choose: `first` gives every node to the first backend that can run it; `auto` does so unless a
            library runs the whole model faster, by measurement (with `autotune`, where the target is this
            machine); `measured` gives sub-graphs to what is fastest on this machine, conversions at
            their borders included.
        benchmark_seconds: upper limit for the samples of one measurement.
        semantics: how storage types are inferred: `stowplan` by shape, type, density and cost,
            `mxnet-1.9` as MXNet 1.9.1 does, casts of its fallbacks included.
        opset: of the exported canonical graph; None takes that which the graph is planned in.
        external_data: whether its large weights are written to a file beside it.
        export: libraries of the program for its target: `c` an archive for C, `wheel` a Python module,
            `ort` an operator of onnxruntime, `static` an object for a device without an operating system
            (one thread). With any, `backends` is `numba-cpu` where it is empty.
        export_name: of the library; empty takes the graph's.
    """

    timings: Timings = "auto"
    memory_budget: int | None = None
    fuse: bool = True
    inplace: bool = True
    verify: bool = True
    tolerance: float = 1e-4
    seed: int = 0
    threads: int = 1
    fast_algorithms: bool = True
    precision: Policy = "f32"
    exact: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)
    int16: Mapping[str, str] = field(default_factory=dict)
    error_budget: float | None = None
    error_metric: ErrorMetric = "max"
    autotune: bool = True
    quick: bool = False
    prefer: Preference = "latency"
    pareto: bool = False
    backends: tuple[str, ...] = ()
    choose: Choose = "auto"
    benchmark_seconds: float = 2.0
    semantics: Semantics = "stowplan"
    opset: int | None = None
    external_data: bool = False
    export: tuple[Export, ...] = ()
    export_name: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """Nodes that are computed a second time, for late readers of what they make.

    Attributes:
        nodes: their names, each after those it needs.
        readers: names of the nodes that read the copies.
    """

    nodes: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Streamed:
    """Groups that run in turn on strips of rows, as one step.

    Attributes:
        groups: their names.
        rows: that a call of each computes at most.
        heads: whether strips are heads of attention, and not rows.
    """

    groups: tuple[str, ...]
    rows: tuple[int, ...]
    heads: bool = False


Denied: TypeAlias = tuple[str, str]  # name of a group's anchor, and of a row that is not to compute it


@dataclass(frozen=True, slots=True)
class MemoryConcessions:
    """Concessions of a plan for a smaller arena, at a price in time.

    Attributes:
        order: the order of steps is searched at length.
        denied: rows that a group has only where no other is left.
        row_major_only: all layouts are row-major.
        unfused: names of nodes that stay out of fused kernels.
        recompute: what is computed a second time, in this order.
        streams: groups that run on strips of rows, a step each.
        spill: whether values may lie in slower memories of the target.
        unbounded: whether a plan may take more than there is, to look at what it lacks.
        peak_limit: bytes; plans whose every order takes more are of no interest.
    """

    order: bool = False
    denied: frozenset[Denied] = frozenset()
    row_major_only: bool = False
    unfused: frozenset[str] = frozenset()
    recompute: tuple[Again, ...] = ()
    streams: tuple[Streamed, ...] = ()
    spill: bool = False
    unbounded: bool = False
    peak_limit: int | None = None

    @property
    def describe(self) -> str:
        """In words."""
        parts = [
            "a longer search for an order" * self.order,
            _counted(len({name for name, _ in self.denied}), "group", "without the rows of most memory"),
            "row-major layouts" * self.row_major_only,
            _counted(len(self.unfused), "node", "left unfused"),
            _counted(sum(len(a.nodes) for a in self.recompute), "node", "computed again"),
            _counted(sum(len(s.groups) for s in self.streams), "group", "in strips of rows"),
            "values in slower memories" * self.spill,
        ]
        return ", ".join(p for p in parts if p) or "nothing given up"


def _counted(count: int, noun: str, rest: str) -> str:
    """As "2 nodes computed again"; empty for none."""
    return f"{count} {noun}{'s' * (count > 1)} {rest}" * bool(count)


@dataclass(frozen=True, slots=True)
class Bindings:
    """Bindings of the inputs before planning, and storage types of outputs.

    Attributes:
        shapes: dimensions by input name; of inputs with symbols the largest of the region.
        values: scalars by input name; such an input becomes a constant of the plan and stays
            in the exported signature.
        tensors: paths of `.npy` files by input name, given to run, verify and return outputs.
        samples: path of an `.npz` file, `[samples, *shape]` by input name, that precisions are calibrated and
            checked on under an `error_budget`; empty draws random ones.
        ranges: half-open (low, high) by integer input name, from which random values are drawn.
        storage: declared storage types by input name.
        value_storage: declared storage types by name of a value that a node of the main graph makes.
        returned: storage types by output name, which the model declares; other outputs are dense.
        region: the shapes that one program shall serve; None for one shape.
        shape_histogram: sizes of its symbols that are expected, with their weights.
        pieces: parts of the region, as an earlier plan of the same model and region has them; empty where
            they are to be found.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, float | int | bool] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    storage: Mapping[str, DeclaredStorage] = field(default_factory=dict)
    value_storage: Mapping[str, DeclaredStorage] = field(default_factory=dict)
    returned: Mapping[str, StorageKind] = field(default_factory=dict)
    region: Region | None = None
    samples: str = ""
    shape_histogram: tuple[WeightedPoint, ...] = ()
    pieces: tuple[Piece, ...] = ()
