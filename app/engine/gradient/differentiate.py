"""Reverse-mode differentiation: from a graph and its loss to the training graph."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient import dropout, marks, sparse, unrolling
from app.engine.gradient.rule import Rule, Site, is_float
from app.engine.gradient.tables import CONSTANT, RULES
from app.engine.gradient.terms import Maker, Term
from app.engine.model import naming
from app.engine.model.shape_inference import inference
from app.engine.types.errors import GraphError, NotDifferentiableError
from app.engine.types.storage import DECLARED

PREFIX = "gradient."
_SHOWN = 20  # operators that an error lists


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of the forward part that the backward part reads."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """A graph with its gradients.

    Attributes:
        model: forward nodes, then backward nodes.
        loss: name of the output that holds the loss.
        gradients: names of the outputs that hold gradients, by variable.
        backward: number of backward nodes.
        kept: values computed by forward nodes that backward nodes read, in the order of computation.
    """

    model: ir.Model
    loss: str
    gradients: Mapping[str, str]
    backward: int
    kept: tuple[Kept, ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of activations that must last until the backward part has read them."""
        return sum(k.nbytes for k in self.kept)


def gradient(model: ir.Model, loss: str, wrt: Sequence[str] | None = None) -> ir.Model:
    """The training graph alone: see `training_graph`."""
    return training_graph(model, loss, wrt).model


def training_graph(
    model: ir.Model, loss: str, wrt: Sequence[str] | None = None, row_sparse: Collection[str] = ()
) -> TrainingGraph:
    """Extend a canonical graph by the gradients of its loss; the model is changed.

    Args:
        model: all types and shapes on the way to the loss are known.
        loss: a value; the sum of its elements is what is differentiated.
        wrt: inputs and initializers; None means every initializer that the loss depends on, without
            what rules call settings (running statistics, bounds, exponents).
        row_sparse: variables whose gradient is declared row_sparse, besides those of which each reader asks
            for that.

    Raises:
        NotDifferentiableError: an operator on the way has no gradient; all such are listed.
        GraphError: a name is unknown, the loss does not depend on a variable, or a variable that is to have
            a row_sparse gradient is read by more than lookups of its rows.
    """
    graph.order_by_wiring(model.graph)
    unroll(model, loss, wrt)
    dropout.take_masks(model)
    target = _loss_of(model.graph, loss)
    variables = _variables(model.graph, target, wrt)
    active = _active(model.graph, (target,), variables)
    _check(active, variables, target)
    maker = Maker(PREFIX)
    found = _Backward(maker, active).run({target: ones(maker, target)}, variables)
    outputs = {value: _result(found[value], value) for value in variables}
    for name in row_sparse:
        named = next((o for v, o in outputs.items() if v.name == name), None)
        if named is None:
            raise GraphError(f"row_sparse names {name!r}, expected one of the variables differentiated by")
        named.metadata_props[DECLARED] = "row_sparse"
    sparse.declare(outputs.values())
    total = _total(maker, target)
    return _finished(model, maker, total, outputs)


def unroll(model: ir.Model, loss: str, wrt: Sequence[str] | None = None) -> bool:
    """Replace recurrent operators and loops on the way to the loss by their steps; True if there were any.

    Loops in the steps of others follow. The order of the nodes is one of execution.
    """
    made = 0
    while True:
        target = _loss_of(model.graph, loss)
        active = _active(model.graph, (target,), _variables(model.graph, target, wrt))
        found = unrolling.unroll(model, filter(unrolling.is_unrolled, active), unrolling.LARGEST - made)
        if not found:
            return made > 0
        made += found
        inference.infer(model)


def adjoints(
    maker: Maker, seeds: Mapping[ir.Value, Term], variables: Sequence[ir.Value]
) -> dict[ir.Value, Term]:
    """Gradients of variables from those of values computed from them, cut at the variables.

    A variable that no seeded value depends on is left out.

    Raises:
        NotDifferentiableError: an operator on the way has no gradient; all such are listed.
    """
    active = _active(upstream(seeds, variables), seeds, variables)
    _check_rules(active, tuple(seeds))
    return _Backward(maker, active).run(seeds, variables)


def upstream(values: Iterable[ir.Value], cut: Collection[ir.Value] = ()) -> tuple[ir.Node, ...]:
    """Nodes that values are computed by, without what is behind the cut; operands first."""
    found: dict[ir.Node, None] = {}
    left = [(v.producer(), False) for v in values if v not in cut]
    stop, seen = set(cut), set()
    while left:
        node, done = left.pop()
        if node is None or node in found:
            continue
        if done:
            found[node] = None
        elif node not in seen:
            seen.add(node)
            left.append((node, True))
            left += [(v.producer(), False) for v in graph.reads(node) if v not in stop]
    return tuple(found)


def ones(maker: Maker, value: ir.Value) -> Term:
    """Ones of the type and shape of a value."""
    seed = Term(maker, value)
    return maker.constant(1, seed.dtype).expand(seed.shape)


def _loss_of(main: ir.Graph, name: str) -> ir.Value:
    found = {v.name: v for v in graph.values(main) if v.name}.get(name)
    if found is None:
        names = ", ".join(repr(v.name) for v in main.outputs)
        raise GraphError(f"loss {name!r}: expected a value of the graph, found none; outputs are {names}")
    if not is_float(found):
        raise GraphError(f"loss {name!r}: expected floats, found {found.type}", pointer=f"value:{name}")
    return found


def _variables(main: ir.Graph, loss: ir.Value, wrt: Sequence[str] | None) -> tuple[ir.Value, ...]:
    """The values that gradients are asked of, in the order asked for, else in that of the graph."""
    if wrt is None:
        return _parameters(main, loss)
    known = {v.name: v for v in (*main.inputs, *main.initializers.values())}
    found: dict[ir.Value, None] = {}
    for name in wrt:
        if name not in known:
            raise GraphError(
                f"variable {name!r}: expected an input or an initializer, found none; "
                f"inputs are {', '.join(repr(v.name) for v in main.inputs)}"
            )
        if not is_float(known[name]):
            raise GraphError(f"variable {name!r}: expected floats, found {known[name].type}")
        found[known[name]] = None
    if not found:
        raise GraphError("no variable is named; name inputs or initializers, or leave the list out")
    return tuple(found)


def _parameters(main: ir.Graph, loss: ir.Value) -> tuple[ir.Value, ...]:
    """Initializers of floats that the loss depends on, other than through settings of operators."""
    weights = [v for v in main.initializers.values() if is_float(v) and not v.is_graph_input()]
    settings = {v for n in main for i, v in enumerate(n.inputs) if (rule := _rule(n)) and i in rule.settings}
    parameters = [
        v for v in weights if v not in settings or any(_is_trained(u.node, u.idx) for u in v.uses())
    ]
    forward = _active(main, (loss,), parameters)
    read = {v for node, inputs in forward.items() for v in inputs}
    found = tuple(v for v in parameters if v in read or v is loss)
    if not found:
        raise GraphError(f"loss {loss.name!r} depends on no initializer of floats; name variables in wrt")
    return found


def _is_trained(node: ir.Node, index: int) -> bool:
    rule = _rule(node)
    return rule is None or index not in rule.settings


def _rule(node: ir.Node) -> Rule | None:
    return RULES.get(node.op_type) if not node.domain else None


Active = dict[ir.Node, tuple[ir.Value, ...]]


def _active(nodes: Iterable[ir.Node], targets: Iterable[ir.Value], variables: Sequence[ir.Value]) -> Active:
    """Nodes on the way from a variable to a target, with the operands on such a way, in their order."""
    varied, reached, cut = set(variables), {}, set(variables)
    for node in nodes:
        if node.op_type in CONSTANT and not node.domain:
            continue
        inputs = tuple(v for v in graph.reads(node) if v in varied)
        if inputs:
            reached[node] = inputs
            varied.update(v for v in node.outputs if v.name and (is_float(v) or not graph.is_tensor(v)))
    useful, found = set(targets), {}
    for node in reversed(reached):
        if any(v in useful and v not in cut for v in node.outputs):
            found[node] = reached[node]
            useful.update(reached[node])
    return dict(reversed(found.items()))


def _check(active: Active, variables: Sequence[ir.Value], loss: ir.Value) -> None:
    """Refuse what has no gradient, all of it in one error."""
    read = {v for inputs in active.values() for v in inputs}
    unread = [repr(v.name) for v in variables if v not in read and v is not loss]
    if unread:
        raise GraphError(
            f"loss {loss.name!r} does not depend on {', '.join(unread)} by any differentiable way; "
            "leave them out of wrt"
        )
    _check_rules(active, (loss,))


def _check_rules(active: Active, targets: Sequence[ir.Value]) -> None:
    """Refuse operators without a rule, all of them in one error."""
    read = {v for inputs in active.values() for v in inputs} | set(targets)
    problems: list[str] = []
    for node in active:
        reason = _rejection(node, read)
        if reason:
            problems.append(f"{node.op_type} {node.name!r}: {reason}")
    if problems:
        more = f"; {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise NotDifferentiableError(
            f"{len(problems)} nodes between the variables and {_named(targets)} have no gradient: "
            + "; ".join(problems[:_SHOWN])
            + more
            + ". Choose another loss, or variables that do not pass through them"
        )


def _named(targets: Sequence[ir.Value]) -> str:
    return f"loss {targets[0].name!r}" if len(targets) == 1 else ", ".join(repr(v.name) for v in targets)


def _rejection(node: ir.Node, read: set[ir.Value]) -> str | None:
    rule = _rule(node)
    if unrolling.is_unrolled(node):
        return unrolling.rejection(node) or (
            f"all steps would be more than {unrolling.LARGEST} nodes, or it is behind a backward operator"
        )
    if rule is None:
        return f"no rule for {node.domain + '::' if node.domain else ''}{node.op_type}"
    for value in (*(v for v in node.inputs if v is not None), *node.outputs):
        if value.name and graph.is_tensor(value) and graph.shape(value) is None:
            return f"the shape of {value.name!r} is {value.shape}, expected a static one; bind the inputs"
    beyond = [v for v in node.outputs[rule.outputs :] if v in read]
    if beyond:
        return f"its output {beyond[0].name!r} has no gradient"
    return rule.rejection(node)


class _Backward:
    """Gradients of values, summed over their uses."""

    def __init__(self, maker: Maker, active: Active) -> None:
        self._maker = maker
        self._active = active
        self._sums: dict[ir.Value, Term] = {}

    def run(self, seeds: Mapping[ir.Value, Term], variables: Sequence[ir.Value]) -> dict[ir.Value, Term]:
        """Gradients of the variables that have one, from those of seeded values."""
        self._sums.update(seeds)
        for node, inputs in reversed(self._active.items()):
            self._visit(node, set(inputs))
        return {v: self._sums[v] for v in variables if v in self._sums}

    def _visit(self, node: ir.Node, wanted: set[ir.Value]) -> None:
        rule = RULES[node.op_type]
        site = Site(self._maker, node, tuple(self._sums.get(v) for v in node.outputs))
        made = tuple(rule.product(site))
        for index, value in enumerate(node.inputs):
            if value is None or value not in wanted:
                continue
            term = made[index] if index < len(made) else None
            if term is None:
                raise NotDifferentiableError(
                    f"{node.op_type} {node.name!r}: the gradient of its operand {value.name!r} is not "
                    "defined; leave out variables that it is computed from",
                    pointer=f"node:{node.name}",
                )
            known = self._sums.get(value)
            self._sums[value] = term if known is None else known + term


def _result(term: Term, like: ir.Value) -> ir.Value:
    """A gradient as an output, which is the variable of no other output and no forward value."""
    copy = term.op("Identity").value
    copy.name = f"{like.name}_grad"
    copy.shape = like.shape
    return copy


def _total(maker: Maker, loss: ir.Value) -> ir.Value:
    """The loss as one number: its sum unless it is one."""
    term = Term(maker, loss)
    if not term.shape:
        return loss
    total = term.sum(range(len(term.shape)), keepdims=False).value
    total.name, total.shape = f"{loss.name}_sum", ir.Shape(())
    return total


def _finished(
    model: ir.Model, maker: Maker, loss: ir.Value, gradients: Mapping[ir.Value, ir.Value]
) -> TrainingGraph:
    """Append what the outputs need of the new nodes, and infer their types."""
    main = model.graph
    forward = tuple(main)
    needed = append_needed(main, maker, (loss, *gradients.values()))
    new = [v for v in (loss, *gradients.values()) if not v.is_graph_output()]
    main.outputs.extend(new)
    naming.make_unique(model)
    inference.infer(model)
    made = set(needed)
    kept = tuple(
        Kept(v.name or "", graph.nbytes(v))
        for n in forward
        for v in n.outputs
        if any(u.node in made for u in v.uses()) and graph.shape(v) is not None
    )
    names = {v.name or "": g.name or "" for v, g in gradients.items()}
    marks.mark(model, names.values())
    return TrainingGraph(model, loss.name or "", names, len(needed), kept)


def append_needed(main: ir.Graph, maker: Maker, outputs: Sequence[ir.Value]) -> list[ir.Node]:
    """Append the new nodes that outputs depend on, under names of their own; returns them."""
    needed = _needed(maker.nodes, outputs)
    kept = set(outputs)
    _name_apart(main, needed, lambda v: v in kept)
    for value in dict.fromkeys(v for n in needed for v in n.inputs if v is not None):
        if value.const_value is not None and value.producer() is None and not value.is_initializer():
            main.register_initializer(value)
    main.extend(needed)
    return needed


def _needed(nodes: Sequence[ir.Node], outputs: Iterable[ir.Value]) -> list[ir.Node]:
    """Nodes that outputs depend on, in order; the others let go of what they read."""
    useful, found = set(outputs), []
    for node in reversed(nodes):
        if any(v in useful for v in node.outputs):
            found.append(node)
            useful.update(v for v in node.inputs if v is not None)
        else:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
    return found[::-1]


def _name_apart(main: ir.Graph, nodes: Sequence[ir.Node], is_output: Callable[[ir.Value], bool]) -> None:
    """Give new values names that the graph has not, those of outputs too."""
    taken = {v.name or "" for n in main.all_nodes() for v in n.outputs}
    taken |= {v.name or "" for v in (*main.inputs, *main.initializers.values())}
    names = {n.name or "" for n in main.all_nodes()}
    made = [v for n in nodes for v in n.outputs]
    constants = [v for n in nodes for v in n.inputs if v is not None and v.const_value is not None]
    fresh = [v for v in dict.fromkeys((*made, *constants)) if not v.is_initializer()]
    for value in sorted(fresh, key=lambda v: not is_output(v)):
        value.name = naming.free(value.name or "", taken)
    for node in nodes:
        node.name = naming.free(node.name or "", names)
