"""Storage types of values of a run: which declared values and outputs, and which gradients, are sparse.

Each is tried: every group that a sparse value reaches takes the cheapest of its rows, those that read or
make sparse values among them, and casts count. What saves no predicted or measured time stays dense, but for
outputs that the model declares sparse: these are wherever a row makes them so in no more bytes. Where only
the dense row of a group was measured, predictions of sparse ones are scaled as that of the dense one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from app.engine.buffers.graph_order import stable_order
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import Implementation, PlanningContext, all_dense
from app.engine.cost import roofline
from app.engine.storage.bounds import Stored, of_elementwise
from app.engine.types.storage import SparseFormat, StorageKind, StorageType

Kinds = Mapping[ir.Value, StorageKind]


@dataclass(frozen=True, slots=True)
class Sparse:
    """Sparse values of a plan and what each group reads and writes sparse.

    Attributes:
        storage: of sparse values.
        required: by group, storage types of its row's operands that are not dense.
        cast: declared values that their groups make dense, to be cast to sparse.
    """

    storage: Mapping[ir.Value, StorageType] = field(default_factory=dict)
    required: Mapping[Group, Kinds] = field(default_factory=dict)
    cast: tuple[ir.Value, ...] = ()
    saved: float = 0.0  # seconds
    reasons: tuple[str, ...] = ()  # for rows that were rejected

    @property
    def is_used(self) -> bool:
        """True if some row reads or writes a sparse value."""
        return any(self.required.values())


def chosen(
    compilation: Compilation, declared: Mapping[ir.Value, StorageType], returned: Kinds
) -> tuple[Sparse, list[str]]:
    """Values that stay sparse, and notes why.

    Args:
        compilation: partitioned and fused.
        declared: inputs, and results of groups, that the job declares sparse.
        returned: outputs that the model declares sparse.
    """
    search = _Search(compilation, declared, returned)
    makers = search.makers()
    best = Sparse()
    kept: list[ir.Value | Group] = []
    notes: list[str] = []
    for value, kind in returned.items():
        leading = [group for group in search.leading_to(value) if group in makers and group not in kept]
        found = search.trial((*kept, *leading))
        if not leading or value not in found.storage or found.storage[value].kind != kind:
            why = "; ".join(found.reasons[:1]) or "no row makes it so"
            notes.append(f"output {value.name!r} is dense, though it is declared {kind}: {why}")
            continue
        gain = found.saved - best.saved
        told = f"{'saves' if gain >= 0 else 'costs'} {abs(gain) * 1e6:.3g} us"
        notes.append(
            f"output {value.name!r} is {described(value, found.storage[value])}, as it is declared: {told}"
        )
        kept += leading
        best = found
    seeds: list[ir.Value | Group] = [*declared, *(group for group in makers if group not in kept)]
    for seed in seeds:
        found = search.trial((*kept, seed))
        gain = found.saved - best.saved
        role = seed.op if isinstance(seed, Group) else "input" if seed.is_graph_input() else "value"
        label = f"{role} {seed.name!r}"
        if gain > 0 and found.is_used:
            kept.append(seed)
            value = seed if isinstance(seed, ir.Value) else seed.outputs[0]
            notes.append(f"{label} is {described(value, found.storage[value])}: saves {gain * 1e6:.3g} us")
            best = found
            continue
        why = f"; {found.reasons[0]}" if found.reasons and not found.is_used else ""
        notes.append(f"{label} is dense: sparse it would cost {-gain * 1e6:.3g} us more{why}")
    return best, notes


def rivals(
    compilation: Compilation, declared: Mapping[ir.Value, StorageType], returned: Kinds
) -> list[tuple[Group, tuple[Implementation, ...], Mapping[ir.Value, StorageType]]]:
    """Groups that sparse values may reach, rows that may compute each, and storage types of values then."""
    search = _Search(compilation, declared, returned)
    search.trial((*declared, *search.makers()))
    return [(group, (*search.dense(group), *rows), storage) for group, rows, storage in search.seen if rows]


def described(value: ir.Value, storage: StorageType) -> str:
    """Storage type of a sparse value with its bound, its bytes and those of the dense value."""
    form = SparseFormat.of(storage, graph.static_shape(value), graph.element_type(value).itemsize)
    return f"{form} (dense {graph.nbytes(value)})"


class _Search:
    """Trials of one compilation."""

    def __init__(
        self, compilation: Compilation, declared: Mapping[ir.Value, StorageType], returned: Kinds
    ) -> None:
        self._compilation = compilation
        self._returned = returned
        self._declared = declared
        self._context = PlanningContext.of(compilation)
        self._partition = compilation.plan.require("partition")
        groups = compilation.plan.groups
        maker = {v: group for group in groups for v in group.outputs}
        self._groups = stable_order({g: frozenset(maker[v] for v in g.inputs if v in maker) for g in groups})
        self._dense: dict[Group, tuple[float, float]] = {}
        # Values that declared outputs are, or are computed from, and in which storage type they serve these.
        self._serving: dict[ir.Value, StorageKind] = {
            v: kind for value, kind in returned.items() for g in self.leading_to(value) for v in g.outputs
        }
        # Groups of the last trial with the rows that apply to sparse values.
        self.seen: list[tuple[Group, tuple[Implementation, ...], Mapping[ir.Value, StorageType]]] = []

    def makers(self) -> list[Group]:
        """Groups that a row can give a sparse result of dense operands."""
        return [
            group
            for group in self._groups
            if any(row.makes_sparse for row in self._rows(group))
            and any(r.makes_sparse and not r.inapplicable(group, self._context) for r in self._rows(group))
        ]

    def leading_to(self, output: ir.Value) -> list[Group]:
        """The group that makes an output, and those whose results of its shape it is computed from."""
        found: list[Group] = []
        needed = {output}
        for group in reversed(self._groups):
            if needed.intersection(group.outputs):
                found.append(group)
                needed.update(v for v in group.inputs if graph.shape(v) == graph.shape(output))
        return found

    def trial(self, seeds: tuple[ir.Value | Group, ...]) -> Sparse:
        """Each group that a sparse value reaches by its cheapest row, of such as serve a declared output."""
        storage = {v: self._declared[v] for v in seeds if isinstance(v, ir.Value) and v.is_graph_input()}
        required: dict[Group, Kinds] = {}
        cast: set[ir.Value] = set()  # values that are there dense too
        stored: list[ir.Value] = []
        saved, reasons = 0.0, []
        self.seen = []
        for group in self._groups:
            inputs = [v for v in group.inputs if v in storage]
            made = [v for v in group.outputs if v in seeds]
            if not inputs and not made and group not in seeds:
                continue
            context = replace(self._context, storage=dict(storage))
            options, rejected = self._options(group, context, may_make=group in seeds)
            reasons += rejected
            serving = [
                o for o in options if any(o[1].get(v) == self._serving.get(v, "") for v in group.outputs)
            ]
            options = serving or options
            times = []
            for seconds, kinds in options:
                casts = [v for v in inputs if kinds.get(v) != storage[v].kind and v not in cast]
                times.append(seconds + sum(map(self._cast_seconds, casts)))
            seconds = min(times)
            kinds = options[times.index(seconds)][1]
            saved += self._dense_seconds(group) - seconds
            cast.update(v for v in inputs if kinds.get(v) != storage[v].kind)
            required[group] = kinds
            for value in group.outputs:
                if value in kinds:
                    storage[value] = self._made(group, value, kinds[value], context)
                elif value in made:
                    storage[value] = self._declared[value]
                    stored.append(value)
                    cast.add(value)
                    saved -= self._storing_seconds(value)
        outputs = self._compilation.graph.outputs
        given = [v for v in outputs if v in storage and storage[v].kind != self._returned.get(v)]
        saved -= sum(self._cast_seconds(v) for v in given if v not in cast)
        return Sparse(storage, required, tuple(stored), saved, tuple(reasons))

    def _options(
        self, group: Group, context: PlanningContext, *, may_make: bool
    ) -> tuple[list[tuple[float, Kinds]], list[str]]:
        """(seconds, storage types) of the rows that apply, the dense one first; and rejections."""
        found: list[tuple[float, Kinds]] = [(self._dense_seconds(group), {})]
        rejected, rows = [], []
        for row in self._rows(group):
            if row.storage is all_dense or (row.makes_sparse and not may_make):
                continue
            reason = row.inapplicable(group, context)
            if reason is None:
                kinds = roofline.run_storage(row, group, context)
                reason = self._misfit(group, kinds, context)
                if kinds and reason is None:
                    rows.append(row)
                    whole = replace(context, storage=self._with_results(group, kinds, context))
                    found.append((self._sparse_seconds(row, group, whole), kinds))
            if reason is not None:
                rejected.append(f"{row.name}: {reason}")
        if rows:
            made = {v: k for row in rows for v, k in roofline.run_storage(row, group, context).items()}
            self.seen.append((group, tuple(rows), self._with_results(group, made, context)))
        return found, rejected

    def _with_results(
        self, group: Group, kinds: Kinds, context: PlanningContext
    ) -> Mapping[ir.Value, StorageType]:
        """Storage types of sparse values, those that the group makes among them."""
        made = {v: self._made(group, v, k, context) for v, k in kinds.items() if v in group.outputs}
        return {**context.storage, **made}

    def _misfit(self, group: Group, kinds: Kinds, context: PlanningContext) -> str | None:
        """Reason why values are not stored as a row reads and writes them; None where they may be."""
        for value, kind in kinds.items():
            if value in group.inputs:
                found = context.storage[value].kind if value in context.storage else "default"
                if found != kind:
                    return f"asks for {value.name!r} {kind}, which is {found} here"
            else:
                shape, itemsize = graph.static_shape(value), graph.element_type(value).itemsize
                made = self._made(group, value, kind, context)
                nbytes = SparseFormat.of(made, shape, itemsize).nbytes
                if nbytes > graph.nbytes(value):
                    return f"{value.name!r} {kind} takes up to {nbytes} byte, dense {graph.nbytes(value)}"
        return None

    def _made(
        self, group: Group, value: ir.Value, kind: StorageKind, context: PlanningContext
    ) -> StorageType:
        """Storage type of a result: its bound is that of its operands' entries."""
        shape = graph.static_shape(value)
        operands = [
            Stored(context.storage[v], graph.static_shape(v)) for v in group.inputs if v in context.storage
        ]
        bound = _BOUNDS[group.op](group, [o for o in operands if o.storage.kind == kind])
        most = Stored(StorageType(kind, ""), shape).bound
        bound = min(bound, most)
        return StorageType(kind, graph.element_type(value).name, bound / max(most, 1), bound)

    def _rows(self, group: Group) -> list[Implementation]:
        backend = self._partition[group.anchor].backend
        rows = self._compilation.registry.candidates(group.op, self._compilation.target.backends)
        return [row for row in rows if row.backend == backend]

    def dense(self, group: Group) -> tuple[Implementation, ...]:
        """The best row on dense operands, as it is predicted."""
        rows = self._dense_rows(group)
        return tuple(sorted(rows, key=lambda row: row.predicted(group, self._context))[:1])

    def _dense_rows(self, group: Group) -> list[Implementation]:
        return [r for r in self._rows(group) if r.rejection_reason(group, self._context) is None]

    def _dense_seconds(self, group: Group) -> float:
        """Seconds of the best row on dense operands, measured where there is a measurement."""
        return self._dense_times(group)[0]

    def _dense_times(self, group: Group) -> tuple[float, float]:
        """Seconds of the best row on dense operands, and how many times its prediction that is."""
        if group not in self._dense:
            times = {row: roofline.seconds(row, group, self._context) for row in self._dense_rows(group)}
            best = min(times, key=lambda row: times[row][0], default=None)
            scale = 1.0
            if best is not None:
                scale = (
                    times[best][0] / (best.predicted(group, self._context) or times[best][0] or 1.0) or 1.0
                )
            self._dense[group] = (times[best][0] if best is not None else 0.0), scale
        return self._dense[group]

    def _sparse_seconds(self, row: Implementation, group: Group, context: PlanningContext) -> float:
        """Seconds of a row on sparse values as they are stored in `context`.

        The prediction is off by as much as that of the best dense one, as far as it is known.
        """
        found = roofline.measured(row, group, context)
        return found[0] if found is not None else row.cost(group, context) * self._dense_times(group)[1]

    def _storing_seconds(self, value: ir.Value) -> float:
        entries = Stored(self._declared[value], graph.static_shape(value)).bound
        return roofline.storing_seconds(self._compilation.target, graph.elements(value), entries)

    def _cast_seconds(self, value: ir.Value) -> float:
        nbytes = 2 * graph.nbytes(value)  # zeros, then what is stored
        return roofline.roofline(self._compilation.target, flops=0.0, nbytes=nbytes, threads=1)


def _of_elementwise(group: Group, kept: list[Stored]) -> int:
    return of_elementwise(len(group.nodes) == 1 and group.anchor.op_type == "Mul", kept)


def _of_indices(group: Group, _kept: list[Stored]) -> int:
    """One row for each index of ScatterND."""
    shape = graph.static_shape(graph.operand(group.anchor, 1))
    return graph.elements(graph.operand(group.anchor, 1)) // shape[-1]


_BOUNDS: Mapping[str, Callable[[Group, list[Stored]], int]] = {
    "Elementwise": _of_elementwise,
    "ScatterND": _of_indices,
}
