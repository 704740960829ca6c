"""Core operators: a small set in which graphs are exchanged, and how other operators are said in it.

They are a specification, not kernels: a node is a core operator under its ONNX name, and a composite for
which kernels exist stays one node.
"""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

OpId: TypeAlias = tuple[str, str]  # (domain, operator)
INTERNAL = 7  # level of what the planner inserts, and no exchanged graph has

LEVELS = {
    0: "values",
    1: "elementwise",
    2: "contractions",
    3: "windows and norms",
    4: "shape, index, reduce",
    5: "control, recurrent, quantized",
    6: "vision, attention",
    INTERNAL: "internal",
}
# How the shape of the first result follows.
SHAPES = {
    "same": "that of the first operand",
    "broadcast": "the operands' shapes, broadcast as NumPy's",
    "product": "the broadcast batch axes, rows of the first operand, columns of the second",
    "window": "batch and channels, then the number of places of the window along each axis",
    "reduced": "the first operand's; reduced axes have the extent 1 or are absent",
    "told": "as an attribute or the values of an operand say",
    "data": "known only when it runs",
    "body": "as the nested graph gives it",
}
ShapeRule: TypeAlias = Literal["same", "broadcast", "product", "window", "reduced", "told", "data", "body"]
How: TypeAlias = Literal["direct", "alias", "rule", "body", "outside"]


@dataclass(frozen=True, slots=True)
class CoreOperator:
    """One core operator.

    Attributes:
        name: in lower case.
        level: how much depends on it, a key of LEVELS; what has a low level is to be supported first.
        ops: operators of a graph that are it; several are one family.
        formula: its results from its operands.
        shape: a key of SHAPES.
        attributes: meaning of each, by name; types and defaults are those of the operator's schema.
    """

    name: str
    level: int
    ops: tuple[str, ...]
    formula: str
    shape: ShapeRule
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expressed:
    """An operator that is said in core operators.

    Attributes:
        formula: an expression in core operators and in named operands, sizes and attributes; empty where
            the operator's own function body is the rule.
    """

    op: str
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Outside:
    """Operators that cannot be said in core operators, and why."""

    ops: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OutsideNode:
    """A node of a canonical graph that is not expressed."""

    node: str
    op: str
    domain: str
    reason: str


_INFIX: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.Mod: "mod",
    ast.MatMult: "matmul", ast.USub: "neg", ast.Lt: "less", ast.Eq: "equal",
}  # fmt: skip


@dataclass(frozen=True)
class CoreSet:
    """The core operators and all that is said in them."""

    operators: tuple[CoreOperator, ...] = ()
    expressed: tuple[Expressed, ...] = ()
    outside: tuple[Outside, ...] = ()

    def __post_init__(self) -> None:
        names = [row.name for row in self.operators]
        ops = [op for row in self.operators for op in row.ops]
        ops += [row.op for row in self.expressed] + [op for row in self.outside for op in row.ops]
        for kind, found in (("core operator", names), ("operator", ops)):
            twice = sorted({name for name in found if found.count(name) > 1})
            if twice:
                raise ValueError(f"{kind} {twice[0]!r} has two rows")

    @cached_property
    def by_name(self) -> Mapping[str, CoreOperator]:
        """Rows by name."""
        return {row.name: row for row in self.operators}

    @cached_property
    def _direct(self) -> Mapping[str, CoreOperator]:
        return {op: row for row in self.operators for op in row.ops}

    @cached_property
    def _expressed(self) -> Mapping[str, Expressed]:
        return {row.op: row for row in self.expressed}

    @cached_property
    def _reasons(self) -> Mapping[str, str]:
        return {op: row.reason for row in self.outside for op in row.ops}

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """All operators that a row speaks of, by name."""
        return tuple(sorted((*self._direct, *self._expressed, *self._reasons)))

    def row(self, op: str) -> CoreOperator | None:
        """The core operator that an operator of the default domain is."""
        return self._direct.get(op)

    def formula(self, op: str) -> str:
        """How an operator is said in core operators; empty where it is one, or has a body."""
        return self._expressed[op].formula if op in self._expressed else ""

    def how(self, op: str) -> How:
        """How an operator of the default domain becomes core operators.

        `direct`: it is one; `alias`: it is one with other operands or attributes; `rule`: several; `body`:
        those of its own function body.
        """
        if op in self._direct:
            return "direct"
        if op not in self._expressed:
            return "outside"
        formula = self._expressed[op].formula
        return "body" if not formula else "alias" if len(self.calls(formula)) == 1 else "rule"

    def names(self, op: str) -> tuple[str, ...]:
        """The core operators that an operator becomes, in order of use; none where a body says it."""
        if op in self._direct:
            return (self._direct[op].name,)
        formula = self.formula(op)
        return tuple(dict.fromkeys(self.calls(formula))) if formula else ()

    def calls(self, formula: str) -> tuple[str, ...]:
        """Names of the core operators in a formula, once for each use.

        Raises:
            ValueError: it calls what is no core operator.
        """
        found = []
        for node in ast.walk(ast.parse(formula, mode="eval")):
            sign = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.append(node.func.id)
            elif sign is not None:
                found.append(_INFIX.get(type(sign), type(sign).__name__))
        unknown = [name for name in found if name not in self.by_name]
        if unknown:
            raise ValueError(f"formula {formula!r} calls {unknown[0]!r}, which is no core operator")
        return tuple(found)

    def reason(self, op: str, domain: str) -> str | None:
        """Reason why an operator is not expressed in core operators; None where it is."""
        if domain not in ("", "ai.onnx"):
            return f"it is an operator of domain {domain!r}"
        if op in self._direct or op in self._expressed:
            return None
        return self._reasons.get(op, "no row says what it is in core operators")

    def left(self, nodes: Iterable[OpId]) -> Mapping[OpId, str]:
        """Reasons by operator, of those that are not expressed."""
        found = {(domain, op): self.reason(op, domain) for domain, op in nodes}
        return {key: reason for key, reason in found.items() if reason is not None}
