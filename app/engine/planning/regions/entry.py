"""From a loaded model and the region of its bindings to the programs of its shapes."""

import dataclasses
import functools
from collections.abc import Callable

from app.engine.core.plan import Compilation
from app.engine.core.registry import Registry
from app.engine.model.load import Loaded
from app.engine.planning import budget, session
from app.engine.planning.expansion import expanded
from app.engine.planning.regions.bounded_outputs import BoundedOutput, with_wholes
from app.engine.planning.regions.extents import extents
from app.engine.planning.regions.pieces import PointPlan, RegionPlan, RegionPlanner
from app.engine.planning.regions.sized_graph import with_constants_apart
from app.engine.rewrites.transpose_sinking import Decisions
from app.engine.types.errors import EngineError, RegionError
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import Point
from app.engine.types.target import Target


def region_of_model(
    loaded: Loaded,
    target: Target,
    options: Options,
    bindings: Bindings,
    registry: Registry,
    tuned: Callable[[Compilation], Compilation] = lambda compilation: compilation,
) -> RegionPlan:
    """The plan of the region of the bindings: of the pieces that they have, or of those that lose least time.

    `tuned` adds measured times to the canonical graphs of expected shapes, and of corners and middle of the
    region and of parts of it. Kernels of this package run all of it.

    Raises:
        RegionError: the model has no such plan; the message names the part of it that is at fault.
        EngineError: the model is refused at a shape of the region.
    """
    region = bindings.region
    if region is None:
        raise RegionError("the bindings have no symbol; a region takes shapes such as [1, 'N<=8']")
    options = dataclasses.replace(options, choose="first")
    # An output whose size a run finds out needs a whole of known shape here, as in a library.
    rewrites = (dataclasses.replace(r, for_libraries=False) for r in registry.rewrites if not r.by_extents)
    registry = dataclasses.replace(registry, rewrites=tuple(rewrites))
    outputs: dict[str, BoundedOutput] = {}
    decisions = Decisions()  # of the largest shape, which is the first sample

    def canonical(point: Point) -> Compilation:
        shapes = {**bindings.shapes, **region.shapes(point)}
        at = dataclasses.replace(bindings, shapes=shapes, region=None, pieces=())
        copy = dataclasses.replace(loaded, model=loaded.model.clone())
        copy.model.meta[Decisions.__name__] = decisions.again()
        try:
            made = session.canonical(expanded(copy, at), target, options, at, registry)
            outputs.update(with_wholes(made.graph))
        except EngineError as error:
            if point == region.largest:
                raise
            raise RegionError(f"at {_told(point)}: {error.message}", pointer=error.pointer) from error
        return made

    found = extents(region, lambda point: canonical(point).model)
    expected = tuple(w for w in bindings.shape_histogram if found.region.contains(w.point))

    @functools.cache
    def plan_at(sizes: tuple[int, ...]) -> PointPlan:
        compilation = tuned(with_constants_apart(canonical(dict(zip(region.symbols, sizes))), found))
        return PointPlan(functools.cache(session.builder(compilation, options)), compilation.timings)

    largest = tuple(found.region.largest.values())
    concessions = budget.chosen(plan_at(largest).build, options).compilation.concessions
    planner = RegionPlanner(
        found,
        lambda point: plan_at(tuple(point.values())),
        expected,
        concessions,
        smallest=options.prefer == "memory",
    )
    planned = planner.given(bindings.pieces) if bindings.pieces else planner.plan()
    return dataclasses.replace(planned, outputs=outputs)


def _told(point: Point) -> str:
    return ", ".join(f"{name}={size}" for name, size in point.items())
