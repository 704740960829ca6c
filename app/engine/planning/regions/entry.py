"""From a loaded model and the region of its bindings to one program for all shapes of the region."""

import dataclasses
from collections.abc import Callable

from app.engine.core.plan import Compilation
from app.engine.core.registry import Registry
from app.engine.model.load import Loaded
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.planning.regions.extents import extents
from app.engine.planning.regions.program import RegionProgram, region_program
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
) -> RegionProgram:
    """The program of the region of the bindings.

    Rows, layouts and order are those of the largest shape; `tuned` adds measured times to its canonical
    graph. Kernels of this package run all of it.

    Raises:
        RegionError: the model has no such program; the message names the part of it that is at fault.
        EngineError: the model is refused at a shape of the region.
    """
    region = bindings.region
    if region is None:
        raise RegionError("the bindings have no symbol; a region takes shapes such as [1, 'N<=8']")
    options = dataclasses.replace(options, choose="first")

    def canonical(point: Point) -> Compilation:
        at = dataclasses.replace(bindings, shapes={**bindings.shapes, **region.shapes(point)}, region=None)
        copy = dataclasses.replace(loaded, model=loaded.model.clone())
        try:
            return session.canonical(expanded(copy, at), target, options, at, registry)
        except EngineError as error:
            if point == region.largest:
                raise
            told = ", ".join(f"{name}={size}" for name, size in point.items())
            raise RegionError(f"at {told}: {error.message}", pointer=error.pointer) from error

    found = extents(region, lambda point: canonical(point).model)
    largest = tuned(canonical(found.region.largest))
    return region_program(session.builder(largest, options), found)
