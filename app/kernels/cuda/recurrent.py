"""LSTM, GRU and RNN: a block of threads walks through time with one sequence of one direction.

The projections of the inputs are given, a product of all steps at once. Units of the state and shares of
their sums are threads; the state stays in shared memory, the recurrent weights are read anew in every step,
from the second cache where they fit it.
"""

import math
from dataclasses import dataclass

import numpy as np

from app.kernels.cuda import functions, storage
from app.kernels.cuda.geometry import check_size
from app.kernels.cuda.kernel import LIMITS, Kernel, KernelError, Launch, Launches, Ref
from app.kernels.cuda.source import Source
from app.kernels.cuda.vectors import pointer

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"tanh": "tanh32({})", "sigmoid": "sigmoid32({})", "relu": "larger({}, float32(0))"}
MOST_THREADS = 1024
SHORTEST = 4  # products of a thread that are worth one


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A layer; strides count elements.

    Attributes:
        cell: LSTM (gates i, o, f, c), GRU (z, r, h) or RNN.
        gates_strides: rows of the projections from one step and one sequence to the next.
        y_strides: of step, direction and sequence.
        state_strides: of direction and sequence, of initial and last states.
        dtype: of weights, states and results; sums and the inner state are float32.
        reverse: the first direction begins at a sequence's end; the second always does.
        clip: limit of what goes into the functions of the gates.
        activations: of an RNN, one a direction, keys of FUNCTIONS.
        resets_after: a GRU's reset gate multiplies the recurrent product, not the state before it.
        initial_h, initial_c, lengths, peepholes: whether there are any.
        wants: which of y, y_h, y_c are written.
    """

    cell: str
    steps: int
    batch: int
    hidden: int
    directions: int
    gates_strides: tuple[int, int]
    y_strides: tuple[int, int, int]
    state_strides: tuple[int, int]
    dtype: str = "float32"
    reverse: bool = False
    clip: float = math.inf
    activations: tuple[str, ...] = ("tanh", "tanh")
    resets_after: bool = False
    initial_h: bool = False
    initial_c: bool = False
    lengths: bool = False
    peepholes: bool = False
    wants: tuple[str, ...] = ("y",)

    @property
    def gates(self) -> int:
        """Number of gates of the cell."""
        return GATES[self.cell]

    @property
    def lanes(self) -> int:
        """Units of the state that are computed at a time."""
        return min(-(-self.hidden // 32) * 32, MOST_THREADS)

    @property
    def shares(self) -> int:
        """Threads of a unit."""
        return max(1, min(MOST_THREADS // self.lanes, -(-self.hidden // SHORTEST)))

    @property
    def shared_bytes(self) -> int:
        """The state twice, the cell or the state that was reset, update gates, sums."""
        return 4 * (4 * self.hidden + self.shares * self.gates * self.lanes)


def packed_weights(r: np.ndarray, gates: int) -> np.ndarray:
    """Recurrent weights [d, gates H, H] as the kernel reads them: [d, H of the state, gates, H]."""
    directions, _, hidden = r.shape
    return np.ascontiguousarray(r.reshape(directions, gates, hidden, hidden).transpose(0, 3, 1, 2))


def recurrent_rejection(layer: Recurrent) -> str | None:
    """Rejection of a layer without a kernel, or None."""
    if layer.shared_bytes > LIMITS["shared_bytes"]:
        return (
            f"a state of {layer.hidden} elements needs {layer.shared_bytes} byte of shared memory, "
            f"at most {LIMITS['shared_bytes']}"
        )
    return None


def recurrent(layer: Recurrent) -> Launches:
    """The launch that walks through time.

    Roles gates: float32[steps · batch, directions · gates · hidden], projections with their biases, rows as
    `gates_strides` tell; w: `packed_weights`; then, where there are any: bias: float32[directions, hidden],
    the recurrent one of the last gate of a GRU that `resets_after`; h0, c0; lengths: int32[batch];
    peepholes: dtype[directions, 3 hidden]; y, y_h, y_c. What lies beyond the end of a sequence is zero in y.
    No aliasing.

    Raises:
        KernelError: the state does not fit shared memory.
    """
    reason = recurrent_rejection(layer)
    if reason is not None:
        raise KernelError(reason)
    for extent in (
        layer.steps * layer.batch * layer.directions * layer.gates * layer.hidden,
        layer.directions * layer.gates * layer.hidden**2,
    ):
        check_size(layer.cell.lower(), extent)
    roles = _roles(layer)
    s = Source()
    with s.block(f"def kernel({', '.join(roles)}):"):
        _write(s, layer)
    source = "\n".join([*functions.library(["sigmoid32 tanh32 saturated larger"]), s.text])
    kernel = Kernel(
        f"{layer.cell.lower()}_{layer.dtype}",
        source,
        tuple(roles.values()),
        layer.lanes * layer.shares,
        shared_bytes=layer.shared_bytes,
    )
    grid = (layer.batch, layer.directions, 1)
    return Launches((Launch(kernel, grid, tuple(Ref(role) for role in roles)),))


def _roles(layer: Recurrent) -> dict[str, str]:
    """Roles and their types."""
    kind = pointer(layer.dtype)
    optional = {
        "bias": (layer.resets_after, "float32*"),
        "h0": (layer.initial_h, kind),
        "c0": (layer.initial_c, kind),
        "lengths": (layer.lengths, "int32*"),
        "peepholes": (layer.peepholes, kind),
    }
    given = {role: type_ for role, (there, type_) in optional.items() if there}
    return {"gates": "float32*", "w": kind, **given, **dict.fromkeys(layer.wants, kind)}


def _write(s: Source, layer: Recurrent) -> None:
    n, (state_d, state_b) = layer.hidden, layer.state_strides
    threads = layer.lanes * layer.shares
    s(
        f"states = shared_f32(uint32(0))  # old and new: {n} each",
        f"kept = shared_f32(uint32({8 * n}))",  # the cell, or the state that was reset
        f"update = shared_f32(uint32({12 * n}))",
        f"sums = shared_f32(uint32({16 * n}))",
        "b, d = uint32(block_x()), uint32(block_y())",
        f"share = uint32(thread() // uint32({layer.lanes}))",
        f"own = uint32(thread() - share * uint32({layer.lanes}))",
        f"begin = uint32(d * uint32({state_d}) + b * uint32({state_b}))",
    )
    s("u = uint32(thread())")
    with s.block(f"while u < uint32({n}):"):
        for there, role, target in (
            (layer.initial_h, "h0", "states"),
            (layer.initial_c, "c0", "kept"),
        ):
            if there:
                storage.load(s, layer.dtype, role, "uint32(begin + u)", ["first"])
            s(f"{target}[u] = first" if there else f"{target}[u] = float32(0)")
        s(f"u = uint32(u + uint32({threads}))")
    s(f"length = uint32({layer.steps})")
    if layer.lengths:
        s(f"length = uint32(min(max(int32(lengths[b]), int32(0)), int32({layer.steps})))")
    s("sync()", "old = uint32(0)", "step = uint32(0)")
    with s.block("while step < length:"):
        _step(s, layer)
        s(f"old = uint32(uint32({n}) - old)", "step = uint32(step + uint32(1))")
    _finish(s, layer, threads)


def _step(s: Source, layer: Recurrent) -> None:
    n, columns = layer.hidden, layer.directions * layer.gates * layer.hidden
    backwards = "d == uint32(1)" if layer.directions == 2 else str(layer.reverse)
    last = "uint32(length - uint32(1) - step)"
    s(f"time = {last} if {backwards} else step" if layer.directions == 2 else "time = step")
    if layer.directions == 1 and layer.reverse:
        s(f"time = {last}")
    gates_t, gates_b = layer.gates_strides
    s(
        f"row = uint32(time * uint32({gates_t}) + b * uint32({gates_b}))",
        f"given = uint32(row * uint32({columns}) + d * uint32({layer.gates * n}))",
        f"new = uint32(uint32({n}) - old)",
    )
    _CELLS[layer.cell](s, layer)


def _products(s: Source, layer: Recurrent, gates: range, vector: str, ending: list[str]) -> None:
    """For each unit `u` the sums `t0` ... of some gates over `vector[start + k]`, then `ending`."""
    n, lanes, shares, count = layer.hidden, layer.lanes, layer.shares, len(gates)
    each = -(-n // shares)
    s("first_unit = uint32(0)")
    with s.block(f"while first_unit < uint32({n}):"):
        s("u = uint32(first_unit + own)")
        s(*(f"a{i} = float32(0)" for i in range(count)))
        with s.block(f"if u < uint32({n}):"):
            s(
                f"k = uint32(share * uint32({each}))",
                f"end = uint32(min(uint32(k + uint32({each})), uint32({n})))",
                f"at = uint32((d * uint32({n}) + k) * uint32({layer.gates * n}) + u)",
            )
            with s.block("while k < end:"):
                s(f"v = {vector}")
                for i, gate in enumerate(gates):
                    storage.load(s, layer.dtype, "w", f"uint32(at + uint32({gate * n}))", [f"w{i}"])
                s(*(f"a{i} = fma(v, w{i}, a{i})" for i in range(count)))
                s(f"at = uint32(at + uint32({layer.gates * n}))", "k = uint32(k + uint32(1))")
        s(*(f"sums[uint32((share * uint32({count}) + uint32({i})) * uint32({lanes}) + own)] = a{i}"
            for i in range(count)))  # fmt: skip
        s("sync()")
        with s.block(f"if share == uint32(0) and u < uint32({n}):"):
            s(*(f"t{i} = a{i}" for i in range(count)), "j = uint32(1)")
            with s.block(f"while j < uint32({shares}):"):
                s(f"at = uint32(j * uint32({count * lanes}) + own)")
                s(*(f"t{i} = t{i} + sums[uint32(at + uint32({i * lanes}))]" for i in range(count)))
                s("j = uint32(j + uint32(1))")
            s(*(f"x{gate} = gates[uint32(given + uint32({gate * n}) + u)]" for gate in gates))
            s(*ending)
        s("sync()", f"first_unit = uint32(first_unit + uint32({lanes}))")


def _of(layer: Recurrent, function: str, value: str) -> str:
    """A function of a gate, of a value within the limits."""
    if math.isfinite(layer.clip):
        value = f"saturated({value}, float32({-layer.clip!r}), float32({layer.clip!r}))"
    return FUNCTIONS[function].format(value)


def _leaves(layer: Recurrent) -> list[str]:
    """Text that stores a new state `h`."""
    y_t, y_d, y_b = layer.y_strides
    place = f"uint32(time * uint32({y_t}) + d * uint32({y_d}) + b * uint32({y_b}) + u)"
    s = Source()
    s("states[uint32(new + u)] = h")
    if "y" in layer.wants:
        storage.store(s, layer.dtype, "y", place, ["h"])
    return s.text.splitlines()


def _lstm(s: Source, layer: Recurrent) -> None:
    n = layer.hidden
    s(f"peephole = uint32(d * uint32({3 * n}))")

    def gate(name: str, number: int, peephole: int, cell: str) -> list[str]:
        value, inner = f"x{number} + t{number}", Source()
        if layer.peepholes:
            place = f"uint32(peephole + uint32({peephole * n}) + u)"
            storage.load(inner, layer.dtype, "peepholes", place, ["p"])
            value += f" + p * {cell}"
        inner(f"{name} = {_of(layer, 'sigmoid', value)}")
        return inner.text.splitlines()

    ending = [
        "c = kept[u]",
        *gate("i", 0, 0, "c"),
        *gate("f", 2, 2, "c"),
        f"c = f * c + i * {_of(layer, 'tanh', 'x3 + t3')}",
        *gate("o", 1, 1, "c"),
        "h = o * tanh32(c)",
        "kept[u] = c",
        *_leaves(layer),
    ]
    _products(s, layer, range(4), "states[uint32(old + k)]", ending)


def _gru(s: Source, layer: Recurrent) -> None:
    n = layer.hidden
    state = "states[uint32(old + k)]"
    gates = [f"z = {_of(layer, 'sigmoid', 'x0 + t0')}", f"r = {_of(layer, 'sigmoid', 'x1 + t1')}"]
    before = "states[uint32(old + u)]"
    if layer.resets_after:
        candidate = f"x2 + r * (t2 + bias[uint32(d * uint32({n}) + u)])"
        ending = [*gates, f"c = {_of(layer, 'tanh', candidate)}", f"h = (float32(1) - z) * c + z * {before}"]
        _products(s, layer, range(3), state, [*ending, *_leaves(layer)])
        return
    _products(s, layer, range(2), state, [*gates, "update[u] = z", f"kept[u] = r * {before}"])
    ending = [f"c = {_of(layer, 'tanh', 'x2 + t0')}", "z = update[u]"]
    ending.append(f"h = (float32(1) - z) * c + z * {before}")
    _products(s, layer, range(2, 3), "kept[k]", [*ending, *_leaves(layer)])


def _rnn(s: Source, layer: Recurrent) -> None:
    found = [_of(layer, name, "x0 + t0") for name in layer.activations]
    chosen = found[0] if layer.directions == 1 else f"{found[0]} if d == uint32(0) else {found[1]}"
    _products(s, layer, range(1), "states[uint32(old + k)]", [f"h = {chosen}", *_leaves(layer)])


_CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def _finish(s: Source, layer: Recurrent, threads: int) -> None:
    """Zeros behind the end of a sequence, and the last state."""
    y_t, y_d, y_b = layer.y_strides
    s("u = uint32(thread())")
    with s.block(f"while u < uint32({layer.hidden}):"):
        if "y" in layer.wants and layer.lengths:
            s("time = length", "zero = float32(0)")
            with s.block(f"while time < uint32({layer.steps}):"):
                place = f"uint32(time * uint32({y_t}) + d * uint32({y_d}) + b * uint32({y_b}) + u)"
                storage.store(s, layer.dtype, "y", place, ["zero"])
                s("time = uint32(time + uint32(1))")
        for role, value in (("y_h", "states[uint32(old + u)]"), ("y_c", "kept[u]")):
            if role in layer.wants:
                s(f"last = {value}")
                storage.store(s, layer.dtype, role, "uint32(begin + u)", ["last"])
        s(f"u = uint32(u + uint32({threads}))")
