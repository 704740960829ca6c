"""From a plan to buffers: which values share bytes, how many, and for how long.

Views (`Choice.views`) must share: the input of a Concat may be a part of its output, the output of a
Split one of its input. In-place pairs (`Choice.inplace`) share where the input's whole class dies in
the step. What the graph takes, returns or holds as weights has memory of its own;
dynamic values live on the host.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

import onnx_ir as ir

from app.engine.buffers.alias import ALIGNMENT, AliasClasses, in_order
from app.engine.core import graph
from app.engine.core.calls import Jump, KernelCall, SubgraphCall, Workspace, body_bytes, unplanned_bodies
from app.engine.core.group import Group
from app.engine.core.placement import BufferAssignment, Scratch, Slice, Space, Storage
from app.engine.core.plan import Choice, Compilation
from app.engine.memory.problem import Buffer, Part, Problem
from app.engine.types.layout import Layout
from app.engine.types.storage import SparseFormat, StorageType

Lives: TypeAlias = Mapping[ir.Value, tuple[int, int]]
Steps: TypeAlias = tuple[tuple[Group, Choice], ...]


def build(compilation: Compilation, *, whole: bool = True) -> BufferAssignment:
    """The storage graph of a plan with implementations and an order.

    Without `whole`, a part of a larger value may be computed in place too: fewer bytes live, but more
    must keep their distance, which may leave no room where there was some.

    Raises:
        ValueError: a chosen view is not legal, a step reads what no earlier step writes, or no
            step writes a graph output.
    """
    implementation = compilation.plan.require("implementation")
    steps = tuple((group, implementation[group]) for group in compilation.plan.require("order"))
    owners = owned(compilation)
    lives = _lives(steps, owners)
    inputs, outputs = compilation.graph.inputs, compilation.graph.outputs
    carried = {inputs[i]: outputs[o] for i, o in compilation.carried if inputs[i] not in outputs}
    alignment = _view_alignment(compilation)
    classes = AliasClasses(owners, lambda v: value_bytes(v, compilation), lives, alignment, carried)
    notes = {**share_views(steps, classes), **_share_inplace(steps, classes, whole)}
    for value, told in _sparse_notes(lives, compilation).items():
        notes[value] = "; ".join([told, *filter(None, [notes.get(value)])])

    taken: set[str] = set()
    planned = tuple(v for v in lives if not graph.is_dynamic(v))
    storages = _storages(planned, steps, classes, lives, notes, taken)
    scratch, workspaces, bodies = _scratch(steps, compilation.options.threads, taken)
    alignment = compilation.target.memories[0].alignment
    buffers = (
        *(buffer_of(s, alignment) for s in storages if s.space == "arena"),
        *(Buffer(s.id, s.first, s.last + 1, s.nbytes, alignment) for s in scratch),
    )
    alone = [value_bytes(v, compilation) for v in planned if v not in owners] + [s.nbytes for s in scratch]
    naive = sum(-(-n // alignment) * alignment for n in alone)
    unplanned = (
        *(v.name or "" for v in lives if graph.is_dynamic(v)),
        *(name for _, choice in steps for name in unplanned_bodies(choice.calls)),
    )
    return BufferAssignment(storages, scratch, workspaces, bodies, Problem(buffers), naive, unplanned)


def _sparse_notes(lives: Lives, compilation: Compilation) -> dict[ir.Value, str]:
    """Notes on the bounds and bytes of sparse values of a run."""
    found = {}
    for value, storage in compilation.plan.require("storage").items():
        if storage.kind != "default" and not value.is_initializer() and value in lives:
            form = SparseFormat.of(storage, graph.static_shape(value), graph.element_type(value).itemsize)
            found[value] = f"{value.name!r} is {form}, dense {graph.nbytes(value)} byte"
    return found


def parts(storage: Storage, alignment: int) -> tuple[Part, ...]:
    """Stretches of bytes of a storage, and when a value that covers them lives; empty when all live always.

    Stretches begin on cache lines; the last reaches to the end of the storage, rounded up.
    """
    end = -(-storage.nbytes // alignment) * alignment
    edges = {e - e % ALIGNMENT for s in storage.slices for e in (s.offset, s.offset + s.nbytes)}
    cuts = sorted({0, end, *(e for e in edges if 0 < e < storage.nbytes)})
    found: list[Part] = []
    for start, stop in pairwise(cuts):
        covering = (s for s in storage.slices if s.offset < stop and s.offset + s.nbytes > start)
        spans = sorted((s.first, s.last + 1) for s in covering)
        lower, upper = spans[0]
        for first, after in [*spans[1:], (storage.last + 2, 0)]:
            if first <= upper:
                upper = max(upper, after)
                continue
            found.append(Part(start, stop - start, lower, upper))
            lower, upper = first, after
    if all(p.lower == storage.first and p.upper == storage.last + 1 for p in found):
        return ()
    return tuple(found)


def buffer_of(storage: Storage, alignment: int) -> Buffer:
    """The storage as a buffer; aligned to 1, its bytes count as they are."""
    lower, upper = storage.first, storage.last + 1
    return Buffer(storage.id, lower, upper, storage.nbytes, alignment, parts(storage, alignment))


def value_bytes(value: ir.Value, compilation: Compilation) -> int:
    """Bytes of a static value in its layout, padding included, or in its sparse format."""
    plan = compilation.plan
    return stored_bytes(value, plan.require("storage").get(value), plan.require("layout").get(value))


def stored_bytes(value: ir.Value, storage: StorageType | None, layout: Layout | None) -> int:
    """Bytes of a static value in this layout, None being row-major, or in the sparse format of `storage`."""
    shape, kind = graph.static_shape(value), graph.element_type(value)
    if storage is not None and storage.kind != "default" and not value.is_initializer():
        return SparseFormat.of(storage, shape, kind.itemsize).nbytes
    if layout is None:
        return graph.nbytes(value)
    return layout.elements(shape) * kind.itemsize


def touched(group: Group, choice: Choice) -> tuple[ir.Value, ...]:
    """Every value that a step reads or writes, those inside the group that its calls name included."""
    named: list[ir.Value | None] = [*group.inputs, *group.outputs]
    named += [v for view in choice.views for v in view[:2]]
    for call in choice.calls:
        if isinstance(call, KernelCall):
            named += [a for a in call.arguments if type(a) is ir.Value]  # not a walk of its protocols
        elif not isinstance(call, Jump):
            named += [*call.inputs, *call.outputs]
    # An omitted optional output is a value without a name.
    return tuple(dict.fromkeys(v for v in named if v is not None and v.name))


def view_classes(compilation: Compilation) -> AliasClasses:
    """Alias classes to choose views with: ask which are `granted`, then `share` what is chosen."""
    alignment = _view_alignment(compilation)
    return AliasClasses(owned(compilation), lambda v: value_bytes(v, compilation), {}, alignment)


def _view_alignment(compilation: Compilation) -> int:
    """Alignment of views; less than a cache line where nothing runs and the memory's is less."""
    target = compilation.target
    return min(ALIGNMENT, target.memories[0].alignment) if target.device == "model" else ALIGNMENT


def owned(compilation: Compilation) -> Mapping[ir.Value, Space]:
    """Values with memory of their own, and where it is; an output that is an input lives there."""
    owners: dict[ir.Value, Space] = dict.fromkeys(compilation.graph.outputs, "output")
    owners.update(dict.fromkeys(compilation.graph.initializers.values(), "weights"))
    owners.update(dict.fromkeys(compilation.graph.inputs, "input"))
    return owners


def _lives(steps: Steps, owners: Mapping[ir.Value, Space]) -> Lives:
    """First and last step of every value that a step touches; -1 is before the first."""
    lives = {v: (-1, -1) for v, space in owners.items() if space != "output"}
    made = {v for group, _ in steps for node in group.nodes for v in node.outputs}
    for step, (group, choice) in enumerate(steps):
        inside = {v for node in group.nodes for v in node.outputs}
        for value in touched(group, choice):
            if value in lives:
                lives[value] = (lives[value][0], step)
            elif value in inside:
                lives[value] = (step, step)
            elif value in made or value.const_value is None:
                raise ValueError(f"step {step} {group.name!r} reads {value.name!r} before a step writes it")
    missing = [v.name for v, space in owners.items() if space == "output" and v not in lives]
    if missing:
        raise ValueError(f"graph output {missing[0]!r} is written by no step")
    return lives


def share_views(steps: Steps, classes: AliasClasses) -> dict[ir.Value, str]:
    """Merge every value with what it is a view of; notes on each value that a step does not write.

    Raises:
        ValueError: a view is not legal.
    """
    notes: dict[ir.Value, str] = {}
    for group, choice in steps:
        if not choice.views:
            continue
        name = choice.implementation.name
        for (source, view, _), reason in classes.share(choice.views, outputs_of(group)).items():
            raise ValueError(
                f"{group.name!r}: {name} takes {view.name!r} for a view of "
                f"{source.name!r}, which is not legal ({reason}); one that copies is needed"
            )
        for source, view, offset in choice.views:
            part = f"{view.name!r} is a view of {source.name!r}"
            if classes.nbytes(source) != classes.nbytes(view):
                part = f"{view.name!r} lies in {source.name!r} at byte {offset}"
            notes[view] = "; ".join([*filter(None, [notes.get(view)]), f"{part} ({name})"])
    return notes


def outputs_of(group: Group) -> tuple[ir.Value, ...]:
    """Every value that a step makes."""
    return tuple(v for node in group.nodes for v in node.outputs)


def _share_inplace(steps: Steps, classes: AliasClasses, whole: bool) -> dict[ir.Value, str]:
    """Merge what may be computed in place; views are merged already, so classes tell all readers."""
    notes: dict[ir.Value, str] = {}
    for step, (group, choice) in enumerate(steps):
        everything = touched(group, choice) if choice.inplace else ()
        static = {v for v in everything if not graph.is_dynamic(v)}
        for source, output in choice.inplace:
            if source not in static or output not in static or output in notes:
                continue
            updates = choice.implementation.updates
            if not classes.inplace_rejection(
                step, group, everything, source, output, whole=whole, updates=updates
            ):
                classes.merge(source, output)
                allows = f"because {choice.implementation.name} allows it"
                notes[output] = f"{output.name!r} in place of {source.name!r} {allows}"
    return notes


def _storages(
    planned: tuple[ir.Value, ...],
    steps: Steps,
    classes: AliasClasses,
    lives: Lives,
    notes: Mapping[ir.Value, str],
    taken: set[str],
) -> tuple[Storage, ...]:
    rows = []
    for alias in {id(c): c for c in map(classes.of, planned)}.values():
        values = in_order(alias.places, lives)
        space = classes.space(alias)
        owner = alias.owner or values[0]
        if alias.first < 0:
            reason = {"input": "graph input", "weights": "weights"}[space]
        else:
            group, choice = steps[alias.first]
            reason = f"activation of {group.name!r} ({choice.implementation.name})"
        shared = [notes[v] for v in values if v in notes]
        rows.append(
            Storage(
                unique(owner.name or "", taken),
                values,
                tuple(
                    Slice(v.name or "", alias.places[v] - alias.start, classes.nbytes(v), *lives[v])
                    for v in values
                ),
                space,
                alias.nbytes,
                alias.owner,
                alias.first,
                alias.last,
                "; ".join([reason, *shared]),
            )
        )
    return tuple(rows)


def _scratch(
    steps: Steps, threads: int, taken: set[str]
) -> tuple[tuple[Scratch, ...], dict[Group, tuple[str, ...]], dict[Group, str]]:
    rows: list[Scratch] = []
    by_group: dict[Group, tuple[str, ...]] = {}
    bodies: dict[Group, str] = {}
    for step, (group, choice) in enumerate(steps):
        ids: dict[int, str] = {}  # equal workspaces are two; the same object is one
        named = []
        for call in choice.calls:
            for argument in call.arguments if isinstance(call, KernelCall) else ():
                if not isinstance(argument, Workspace):
                    continue
                if id(argument) not in ids:
                    ids[id(argument)] = unique(f"{group.name}.workspace", taken)
                    copies = threads if argument.per_thread else 1
                    reason = f"workspace of step {step} {group.name!r} ({choice.implementation.name})"
                    if argument.per_thread:
                        reason += f", {argument.nbytes} byte for each of {threads} threads"
                    rows.append(Scratch(ids[id(argument)], step, step, argument.nbytes * copies, reason))
                named.append(ids[id(argument)])
            if isinstance(call, SubgraphCall) and call.arena_nbytes:
                reason = (
                    f"memory of {call.backend} for the values inside step {step} {group.name!r}, as we would "
                    "plan them; the library keeps it from run to run"
                )
                name = unique(f"{group.name}.{call.backend}", taken)
                rows.append(Scratch(name, 0, len(steps) - 1, call.arena_nbytes, reason, "library"))
        if named:
            by_group[group] = tuple(named)
        if nbytes := body_bytes(choice.calls):
            bodies[group] = unique(f"{group.name}.body", taken)
            reason = f"what the bodies of step {step} {group.name!r} work in, one at a time"
            if outside := unplanned_bodies(choice.calls):
                reason += f"; at least: of {', '.join(outside)} no bound is known"
            rows.append(Scratch(bodies[group], step, step, nbytes, reason, "body"))
    return tuple(rows), by_group, bodies


def unique(name: str, taken: set[str]) -> str:
    """A name that is not taken yet, as like this one as can be; it is taken then."""
    found, n = name, 1
    while found in taken:
        n += 1
        found = f"{name}.{n}"
    taken.add(found)
    return found
