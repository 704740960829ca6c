"""Casts of storage types as nodes: `CastStorage` of domain `stowplan`, logically the identity.

A cast is an operator like any other: its result is a buffer that memory planning sees, and every reader
that needs a value in one storage type shares one cast of it.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.plan import Compilation, Subgraph
from app.engine.core.plan_editor import PlanEditor
from app.engine.core.registry import PlanningContext
from app.engine.types.errors import GraphError
from app.engine.types.storage import DispatchMode, StorageKind

DOMAIN, OP = "stowplan", "CastStorage"


def insert_casts(
    compilation: Compilation, modes: Mapping[ir.Node, DispatchMode], context: PlanningContext
) -> tuple[Compilation, dict[ir.Node, DispatchMode]]:
    """The compilation with casts around every group that does not compute on sparse operands, and its modes.

    A node whose operands are cast for want of a kernel falls back, whatever `modes` says of it.

    Groups are single nodes. Those are nodes that fall back or compute on dense operands, and those for
    whose storage types there is no kernel. Inputs and outputs of the graph are dense arrays to its caller.

    Raises:
        GraphError: no backend of the target casts.
    """
    work = _CastEditor(compilation)
    found = dict(modes)
    for value in list(compilation.graph.inputs):
        if work.kind(value) != "default" and value.name not in compilation.bindings.storage:
            work.take_in(value)
    for anchor in [group.anchor for group in compilation.plan.groups]:
        group = work.fusion[anchor]
        sparse = [v for v in (*group.inputs, *group.outputs) if work.kind(v) != "default"]
        if not sparse:
            continue
        current = dataclasses.replace(context, storage=work.storage)
        rows = compilation.registry.candidates(group.op, compilation.target.backends)
        ready = modes[group.anchor] is DispatchMode.COMPUTE_EX
        if ready and any(row.op != "*" and row.rejection_reason(group, current) is None for row in rows):
            continue
        if ready:
            told = ", ".join(f"{v.name!r} {work.kind(v)}" for v in sparse)
            work.notes.append(f"{group.op} {group.name!r}: no kernel for {told}; operands are cast")
            found[group.anchor] = DispatchMode.FALLBACK
        work.surround(group)
    for value in dict.fromkeys(compilation.graph.outputs):
        if work.kind(value) != "default":
            work.give_out(value)
    return dataclasses.replace(work.finish(), notes=(*compilation.notes, *work.notes)), found


def insert_dense(
    compilation: Compilation,
    required: Mapping[Group, Mapping[ir.Value, StorageKind]],
    returned: Mapping[ir.Value, StorageKind],
    stored: Iterable[ir.Value] = (),
) -> Compilation:
    """The compilation with casts to dense before groups that do not require a sparse value as it is stored.

    Values that are `stored` are made dense, and cast to sparse for the groups that require them so. Outputs
    of the graph are cast too, but those that are `returned` in their storage type.

    Raises:
        GraphError: no backend of the target casts.
    """
    work = _CastEditor(compilation)
    made = {}
    for value in stored:
        readers = [g for g in compilation.plan.groups if value in g.inputs and value in required.get(g, {})]
        made[value] = work.store(value, [work.fusion[g.anchor] for g in readers])
    for group in compilation.plan.groups:
        kinds = {made.get(v, v): kind for v, kind in required.get(group, {}).items()}
        current = work.fusion[group.anchor]
        work.densify(current, [v for v in current.inputs if work.kind(v) != kinds.get(v, "default")])
    for value in dict.fromkeys(compilation.graph.outputs):
        if work.kind(value) not in ("default", returned.get(value)):
            work.give_out(value)
    return work.finish()


class _CastEditor(PlanEditor):
    """A graph that casts are put into."""

    def __init__(self, compilation: Compilation) -> None:
        super().__init__(compilation, "partition", "fusion", "storage")
        self.notes: list[str] = []
        self._made: dict[tuple[ir.Value, StorageKind], ir.Value] = {}

    def kind(self, value: ir.Value) -> StorageKind:
        """How a value is stored."""
        return self.storage[value].kind if value in self.storage else "default"

    def take_in(self, value: ir.Value) -> None:
        """Let readers of a graph input, which is a dense array, read what it is cast to."""
        kind = self.kind(value)
        self.storage[value] = dataclasses.replace(self.storage[value], kind="default")
        self._cast(value, kind, readers=self._readers(value))

    def store(self, value: ir.Value, readers: Iterable[Group]) -> ir.Value:
        """Cast a value that is made dense, for those who need it sparse; at most what the job declares."""
        storage, declared = self.storage[value], self._compilation.bindings.value_storage[value.name or ""]
        self.storage[value] = dataclasses.replace(storage, kind="default", density=1.0, bound=None)
        made = self._cast(value, storage.kind, readers, declared=str(declared))
        self.storage[made] = storage
        return made

    def densify(self, group: Group, sparse: Iterable[ir.Value]) -> Group:
        """Let a group read these values dense; the group that stands for it from now on."""
        replaced = {v: self._cast(v, "default") for v in sparse if self.kind(v) != "default"}
        return self.redirect(group, replaced) if replaced else group

    def surround(self, group: Group) -> None:
        """Cast what a group reads to dense, and what it makes from it."""
        group = self.densify(group, [v for v in group.inputs if self.kind(v) != "default"])
        for value in group.outputs:
            kind = self.kind(value)
            if kind == "default":
                continue
            # The node makes a dense value; the name stays with the sparse one, which others read.
            storage, readers = self.storage[value], self._readers(value)
            self.storage[value] = dataclasses.replace(storage, kind="default", density=1.0, bound=None)
            made = self._cast(value, kind, readers, value.name)
            self.storage[made] = dataclasses.replace(storage, density=1.0)
            self.return_instead(value, made, "default")

    def give_out(self, value: ir.Value) -> None:
        """Cast an output of the graph, under its name."""
        self.return_instead(value, self._cast(value, "default"), self.kind(value))

    def _readers(self, value: ir.Value) -> list[Group]:
        return [g for g in dict.fromkeys(self.fusion.values()) if value in g.inputs and g.op != OP]

    def _cast(
        self,
        value: ir.Value,
        to: StorageKind,
        readers: Iterable[Group] = (),
        name: str | None = None,
        declared: str = "",
    ) -> ir.Value:
        """The value in another storage type, cast once for all who need it; runs keep to what is declared."""
        if (value, to) not in self._made:
            made = ir.Value(name=name or f"{value.name}:{to}", shape=value.shape, type=value.type)
            attributes = [ir.AttrString("source", self.kind(value)), ir.AttrString("stype", to)]
            if declared:
                attributes.append(ir.AttrString("declared", declared))
            node = ir.Node(DOMAIN, OP, [value], attributes, outputs=[made], name=f"cast_storage:{made.name}")
            self._made[value, to] = self.insert_between(value, node, readers)
            stored = dataclasses.replace(self.storage[value], kind=to)
            self.storage[made] = dataclasses.replace(stored, bound=None) if to == "default" else stored
            self.partition[node] = self._part(self.fusion[node])
        return self._made[value, to]

    def _part(self, group: Group) -> Subgraph:
        """A sub-graph of its own on the first backend that casts."""
        context = PlanningContext.of(self._compilation, self.storage)
        backends = self._compilation.target.backends
        reasons = []
        for row in self._compilation.registry.candidates(OP, backends):
            reason = row.rejection(group, context)
            if reason is None and row.op != "*":
                return Subgraph(max(p.index for p in self.partition.values()) + 1, row.backend)
            reasons.append(f"{row.name}: {reason}")
        told = "; ".join(reasons) or "no backend has a row"
        raise GraphError(
            f"{group.inputs[0].name!r} cannot be cast on target {self._compilation.target.name!r} ({told})",
            pointer=f"value:{group.inputs[0].name}",
        )
