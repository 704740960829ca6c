"""What a caller may ask of an optimization."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Timings = Literal["auto", "measured", "predicted"]
Policy = Literal["f32", "bf16", "auto"]
Choose = Literal["first", "measured"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one job.

    Attributes:
        timings: `measured` runs the program on this machine, `predicted` never does; `auto`
            measures when the target is this machine.
        memory_budget: bytes that the arena may take; None takes the target's.
        fuse: whether neighbouring operators may share a kernel.
        verify: whether to compare with the original model.
        tolerance: largest difference allowed, as a fraction of the output's maximum.
        seed: of the random inputs used where none are given.
        threads: of the executor.
        fast_algorithms: whether products may be computed with fewer multiplications (Winograd,
            Strassen), where their error, measured on the weights, is far inside the tolerance.
        precision: of arithmetic on float32 models. `bf16` and `auto` use what the target and its
            kernels offer; where that is float32 alone, the report says so.
        autotune: whether implementations are measured on this machine before they are chosen; it
            takes a target that is this machine.
        backends: those that may run the graph, in order of preference; empty takes the target's. The
            reference evaluator always comes last, for what none of them can run.
        choose: `first` gives every node to the first backend that can run it; `measured` gives
            sub-graphs to what is fastest on this machine, conversions at their borders included.
        benchmark_seconds: upper limit for the samples of one measurement.
    """

    timings: Timings = "auto"
    memory_budget: int | None = None
    fuse: bool = True
    verify: bool = True
    tolerance: float = 1e-4
    seed: int = 0
    threads: int = 1
    fast_algorithms: bool = True
    precision: Policy = "f32"
    autotune: bool = True
    backends: tuple[str, ...] = ()
    choose: Choose = "first"
    benchmark_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Bindings:
    """What is known of the inputs before planning.

    Attributes:
        shapes: dimensions by input name.
        values: scalars by input name; such an input becomes a constant of the plan and stays
            in the exported signature.
        tensors: paths of `.npy` files by input name, given to run, verify and return outputs.
        ranges: half-open (low, high) by integer input name, from which random values are drawn.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, float | int | bool] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
