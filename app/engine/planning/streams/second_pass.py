"""Second passes: images that are reduced before they are read, as by squeeze-and-excite, computed twice.

Such an image lies whole between its sum and its other readers. Where what makes it is computed again for
these, both passes run in strips, and no image lies between.
"""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.program import Program
from app.engine.core.registry import PlanningContext
from app.engine.passes.streams.segments import strips_of
from app.engine.planning.rematerialization import DEEPEST, Lives, is_repeatable, origin, own_nodes
from app.engine.types.options import Again

SHARES = (1, 2, 4)  # images are computed twice that are at least these parts of the largest


def second_passes(program: Program) -> tuple[tuple[Again, ...], ...]:
    """Values to compute again, of plans with the largest such images and with more of them.

    What makes an image is computed again from values that are smaller than it, by at most DEEPEST groups.
    """
    if program.compilation.bindings.region is not None:
        return ()
    found = _found(program)
    largest = max((nbytes for nbytes, _ in found), default=0)
    plans = (tuple(again for nbytes, again in found if nbytes * share >= largest) for share in SHARES)
    return tuple(dict.fromkeys(plan for plan in plans if plan))


def _found(program: Program) -> list[tuple[int, Again]]:
    """Bytes of each image, and what makes it with its late readers, in the order of the program."""
    compilation, lives = program.compilation, Lives(program)
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    able = {}
    for step in program.steps:
        strips = strips_of(step.group, step.choice, compilation, context)
        if not isinstance(strips, str):
            able[step.index] = strips
    found = []
    for step in (step for step in program.steps if step.index in able and able[step.index].sums):
        image = origin(graph.operand(step.group.anchor, 0))
        readers = lives.readers(image)
        late = [node for node in readers or () if lives.at[node] > step.index]
        groups = _makers(image, lives, set(able))
        if late and groups:
            nodes = tuple(node.name or "" for group in groups for node in own_nodes(group.nodes))
            again = Again(nodes, tuple(sorted(node.name or "" for node in late)))
            found.append((graph.nbytes(image), again))
    return found


def _makers(image: ir.Value, lives: Lives, able: set[int]) -> list[Group]:
    """Groups that make an image from smaller values, in order; none if too many, or one has no strips."""
    needed: dict[int, Group] = {}
    waiting = [image]
    while waiting:
        index = lives.maker.get(waiting.pop())
        if index is None or index in needed:
            continue
        group = lives.program.steps[index].group
        if len(needed) == DEEPEST or index not in able or not all(map(is_repeatable, group.nodes)):
            return []
        needed[index] = group
        read = (origin(v) for v in group.inputs if not graph.is_constant(v))
        waiting += [v for v in read if graph.nbytes(v) >= graph.nbytes(image)]
    return [needed[index] for index in sorted(needed)]
