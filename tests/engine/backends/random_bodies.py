"""Random models with If, Loop and Scan in one another, as ONNX text."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

ROWS, COLUMNS = 2, 3  # of every matrix


class Writer:
    """A model of matrices [2, 3], its control flow nested up to `depth`."""

    def __init__(self, seed: int, depth: int = 2) -> None:
        self._random = random.Random(seed)
        self._depth = depth
        self._names = 0

    def model(self, opset: int = 21) -> str:
        """The text; inputs `n` (turns), `c` (condition), `x`, `z`, `w` [3, 3] and `s` [4, 2, 3]."""
        lines: list[str] = []
        values = ["x", "z"]
        for _ in range(self._random.randint(2, 4)):
            self._step(lines, values, self._depth)
        results = values[2:][-3:]
        outputs = ", ".join(f"float[2, 3] out{i}" for i in range(len(results)))
        lines += [f"out{i} = Neg ({v})" for i, v in enumerate(results)]
        inputs = "int64 n, bool c, float[2, 3] x, float[2, 3] z, float[3, 3] w, float[4, 2, 3] s"
        head = f'<ir_version: 10, opset_import: ["": {opset}]>\nagraph ({inputs}) => ({outputs})'
        return f"{head} {{\n" + "\n".join(lines) + "\n}"

    def _new(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def _step(self, lines: list[str], values: list[str], depth: int) -> None:
        """One more value, or several, that `values` are computed to."""
        kinds = [self._plain, self._plain] + [self._if, self._loop, self._scan] * (depth > 0)
        self._random.choice(kinds)(lines, values, depth)

    def _plain(self, lines: list[str], values: list[str], _depth: int) -> None:
        # Operators that no kernel fuses: few kernels for many models.
        name, a, b = self._new("v"), self._random.choice(values), self._random.choice(values)
        form = self._random.choice(("softmax", "softmax", "product", "mean", "copy"))
        if form == "softmax":
            lines.append(f"{name} = Softmax <axis = {self._random.randint(0, 1)}> ({a})")
        elif form == "product":
            lines.append(f"{name} = MatMul ({a}, w)")
        elif form == "copy":
            lines.append(f"{name} = Identity ({a})")
        else:
            axes, both = self._new("k"), self._new("p")
            first, second = self._new("u"), self._new("u")
            lines.append(f"{axes} = Constant <value_ints = [0]> ()")
            lines.append(f"{first} = Unsqueeze ({a}, {axes})")
            lines.append(f"{second} = Unsqueeze ({b}, {axes})")
            lines.append(f"{both} = Concat <axis = 0> ({first}, {second})")
            lines.append(f"{name} = ReduceMean <keepdims = 0> ({both}, {axes})")
        values.append(name)

    def _body(self, outer: list[str], own: list[str], depth: int) -> tuple[list[str], list[str]]:
        """Lines of a body that reads `own` and, from outside, some of `outer`; and its values."""
        seen = [*self._random.sample(outer, min(2, len(outer))), *own]
        lines: list[str] = []
        for _ in range(self._random.randint(1, 3)):
            self._step(lines, seen, depth - 1)
        return lines, seen

    def _result(self, lines: list[str], seen: list[str], own: list[str]) -> str:
        """A name that the body may return: of its own, an input unchanged now and then."""
        if own and self._random.random() < 0.25:
            return self._returned(lines, self._random.choice(own))
        return self._returned(lines, self._random.choice(seen))

    def _returned(self, lines: list[str], value: str) -> str:
        name = self._new("r")
        lines.append(f"{name} = {self._random.choice(('Identity', 'Softmax'))} ({value})")
        return name

    def _if(self, lines: list[str], values: list[str], depth: int) -> None:
        branches = []
        for branch in ("then_branch", "else_branch"):
            inner, seen = self._body(values, [], depth)
            result = self._result(inner, seen, [])
            branches.append(
                f"{branch} = {self._new('g')} () => (float[2, 3] {result}) {{\n" + "\n".join(inner) + "\n}"
            )
        name = self._new("v")
        lines.append(f"{name} = If (c) <{', '.join(branches)}>")
        values.append(name)

    def _stacked(self, lines: list[str], stack: str, axis: int, values: list[str]) -> None:
        """A stack as one more matrix: its largest elements along the turns, 0 at least."""
        axes, name, zeros = self._new("k"), self._new("v"), self._new("v")
        bottom, rows = self._new("v"), self._new("v")
        lines.append(f"{axes} = Constant <value_ints = [{axis}]> ()")
        lines.append(f"{zeros} = Constant <value = float[2, 3] {{0, 0, 0, 0, 0, 0}}> ()")
        lines.append(f"{bottom} = Unsqueeze ({zeros}, {axes})")
        lines.append(f"{rows} = Concat <axis = {axis}> ({stack}, {bottom})")
        lines.append(f"{name} = ReduceMax <keepdims = 0> ({rows}, {axes})")
        values.append(name)

    def _loop(self, lines: list[str], values: list[str], depth: int) -> None:
        carried = self._random.randint(0, 2)
        own = [self._new("a") for _ in range(carried)]
        turn, go, more = self._new("i"), self._new("go"), self._new("more")
        inner, seen = self._body(values, own, depth)
        results = [self._result(inner, seen, own) for _ in own]
        stack = self._result(inner, seen, own)
        ends = self._random.random() < 0.3
        if ends:
            limit = self._new("k")
            inner.append(f"{limit} = Constant <value = int64 {{{self._random.randint(0, 3)}}}> ()")
            inner.append(f"{more} = Less ({turn}, {limit})")
        else:
            inner.append(f"{more} = Identity ({go})")
        trips = self._random.choice(["n", "n", *([""] if ends else [])])
        if self._random.random() < 0.3:
            trips = self._new("k")
            lines.append(f"{trips} = Constant <value = int64 {{{self._random.randint(0, 4)}}}> ()")
        condition = self._random.choice(["c", ""] if trips else [""])
        inputs = ", ".join([f"int64 {turn}", f"bool {go}", *(f"float[2, 3] {v}" for v in own)])
        outputs = ", ".join([f"bool {more}", *(f"float[2, 3] {v}" for v in (*results, stack))])
        names, stacked = [self._new("v") for _ in own], self._new("s")
        initial = ", ".join([trips or '""', condition or '""', *(self._random.choice(values) for _ in own)])
        body = f"body = {self._new('g')} ({inputs}) => ({outputs}) {{\n" + "\n".join(inner) + "\n}"
        lines.append(f"{', '.join([*names, stacked])} = Loop ({initial}) <{body}>")
        values.extend(names)
        self._stacked(lines, stacked, 0, values)

    def _scan(self, lines: list[str], values: list[str], depth: int) -> None:
        states = [self._new("a") for _ in range(self._random.randint(0, 2))]
        scanned = [self._new("e") for _ in range(self._random.randint(1, 2))]
        axes = [self._random.choice((0, 1, 2, -1, -2, -3)) for _ in scanned]
        sources = [self._new("t") for _ in scanned]
        for source, axis in zip(sources, axes):  # s with the axis of 4 where it is scanned
            order = [1, 2]
            order.insert(axis % 3, 0)
            lines.append(f"{source} = Transpose <perm = {order}> (s)")
        inner, seen = self._body(values, [*states, *scanned], depth)
        results = [self._result(inner, seen, states) for _ in states]
        stacks = [self._result(inner, seen, scanned) for _ in range(self._random.randint(1, 2))]
        placed = [self._random.choice((0, 1, 2, -1, -3)) for _ in stacks]
        inputs = ", ".join(f"float[2, 3] {v}" for v in (*states, *scanned))
        outputs = ", ".join(f"float[2, 3] {v}" for v in (*results, *stacks))
        body = f"body = {self._new('g')} ({inputs}) => ({outputs}) {{\n" + "\n".join(inner) + "\n}"
        attributes = [body, f"num_scan_inputs = {len(scanned)}", f"scan_input_axes = {axes}"]
        attributes.append(f"scan_output_axes = {placed}")
        for side, count in (("input", len(scanned)), ("output", len(stacks))):
            flags = [self._random.randint(0, 1) for _ in range(count)]
            attributes.append(f"scan_{side}_directions = {flags}")
        names, stacked = [self._new("v") for _ in states], [self._new("s") for _ in stacks]
        initial = [*(self._random.choice(values) for _ in states), *sources]
        lines.append(
            f"{', '.join([*names, *stacked])} = Scan ({', '.join(initial)}) <{', '.join(attributes)}>"
        )
        values.extend(names)
        for stack, axis in zip(stacked, placed):
            self._stacked(lines, stack, axis % 3, values)


def random_inputs(seed: int) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Inputs of such a model: with several turns, with none, and with the other branch."""
    rng = np.random.default_rng(seed)
    for n, c in ((3, True), (0, True), (2, False)):
        yield {
            "n": np.array(n),
            "c": np.array(c),
            "x": rng.standard_normal((2, 3)).astype(np.float32),
            "z": rng.standard_normal((2, 3)).astype(np.float32),
            "w": rng.standard_normal((3, 3)).astype(np.float32) / 2,
            "s": rng.standard_normal((4, 2, 3)).astype(np.float32),
        }
