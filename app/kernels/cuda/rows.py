"""Source text of kernels that read a row, combine it, and write a row or a number.

A row belongs to as many neighbouring threads as it needs: a part of a warp, a warp, or a block. Where
it fits it is read once and held in registers as tuples of one 16-byte access each; a longer one
is read again, from cache, in every sweep. Every thread reads its elements before it writes them, so an
output may lie over an input that is read at the same places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.kernels.cuda import functions
from app.kernels.cuda.geometry import indented
from app.kernels.cuda.kernel import Kernel, Launches
from app.kernels.cuda.vectors import device

WARP = 32
HELD = 4  # tuples of a thread that stay in registers
BLOCK = 128  # threads of a block that holds several rows
MOST_THREADS = 1024


def lanewise(name: str, parameters: Sequence[str], expression: str, width: int) -> list[str]:
    """Lines of a function of tuples and scalars: a tuple of `expression`, in which `{i}` is the index."""
    values = ", ".join(expression.format(i=i) for i in range(width))
    return device(f"{name}({', '.join(parameters)})", f"return ({values},)")


def folded(name: str, element: str, step: str, width: int) -> list[str]:
    """Lines of a function (a, v) that joins `a` with the elements of a tuple `v`, as a tree.

    Args:
        name: of the function.
        element: what index `{i}` contributes.
        step: joins `{a}` and `{b}`.
        width: of the tuple.
    """
    terms = [element.format(i=i) for i in range(width)]
    while len(terms) > 1:
        pairs = [step.format(a=a, b=b) for a, b in zip(terms[::2], terms[1::2])]
        terms = pairs + terms[len(pairs) * 2 :]
    return device(f"{name}(a, v)", f"return {step.format(a='a', b=terms[0])}")


@dataclass(slots=True)
class Rows:
    """One kernel under construction: rows of `n` elements in tuples of `width`.

    Attributes:
        n: elements of a row.
        width: of a tuple; divides n.
        loads: source of a tuple at column `{c}` of the row whose first element is at `base`.
        base: source of `base`, which may use `row`.
        kind: of numbers that are joined, f32 or i32.
        zero: of which tuples are made that no element fills.
        least: threads of a row, at least.
        functions: lines before the kernel.
        body: lines of the kernel.
    """

    n: int
    width: int
    loads: str
    base: str
    kind: str = "f32"
    zero: str = "float32(0)"
    least: int = 1
    functions: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    _transforms: list[str] = field(default_factory=list)
    _totals: int = 0

    @property
    def threads(self) -> int:
        """Threads of a row: a power of two."""
        threads, tuples = self.least, -(-self.n // self.width)
        while threads < MOST_THREADS and threads * HELD < tuples:
            threads *= 2
        return threads

    @property
    def held(self) -> int:
        """Tuples that a thread holds; 0 where the row is read again in every sweep."""
        tuples = -(-self.n // (self.width * self.threads))
        return tuples if tuples <= HELD else 0

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return BLOCK // self.threads if self.threads <= WARP else 1

    def begin(self) -> None:
        """Lines that find the row of a thread and read what it holds."""
        t = self.threads
        self.body += [
            f"column = uint32(thread() % uint32({t}))",
            f"row = uint32(block_x() * uint32({self.rows}) + thread() // uint32({t}))",
            "live = row < rows",
            f"base = {self.base}",
            f"first = uint32(column * uint32({self.width}))",
        ]
        if t > WARP:
            self.body.append(f"scratch = shared_{self.kind}(uint32(0))")
        zeros = ", ".join([self.zero] * self.width)
        for r in range(self.held):
            whole = self.n % (t * self.width) == 0 or r < self.held - 1
            self.body += [
                f"c{r} = uint32(first + uint32({r * t * self.width}))",
                f"ok{r} = live" if whole else f"ok{r} = live and c{r} < uint32({self.n})",
                f"v{r} = ({zeros},)",
                f"if ok{r}:",
                f"    v{r} = {self.loads.format(c=f'c{r}')}",
            ]

    def sweep(self, *lines: str) -> None:
        """Lines for every tuple of the row: `{v}` names it, `{c}` its column."""
        if self.held:
            for r in range(self.held):
                self.body.append(f"if ok{r}:")
                self.body += indented([line.format(v=f"v{r}", c=f"c{r}") for line in lines])
            return
        step = self.width * self.threads
        self.body += ["if live:", f"    for k in range(first, uint32({self.n}), uint32({step})):"]
        inner = ["c = uint32(k)", f"v = {self.loads.format(c='c')}", *self._transforms]
        self.body += indented([*inner, *(line.format(v="v", c="c") for line in lines)], 2)

    def transform(self, expression: str) -> None:
        """Replace every tuple `{v}` of the row, for the sweeps that follow."""
        if self.held:
            self.sweep(f"{{v}} = {expression}")
        else:
            self._transforms.append(f"v = {expression.format(v='v', c='c')}")

    def join(self, names: Sequence[str], steps: Sequence[str]) -> None:
        """Join variables over the threads of a row; all of them get the result.

        Args:
            names: of the variables; the others' are `{name}_`.
            steps: lines that join them, in terms of both.
        """
        t = self.threads
        reach = min(t, WARP) // 2
        while reach:
            self.body += [f"{n}_ = shfl_xor_{self.kind}({n}, uint32({reach}))" for n in names]
            self.body += steps
            reach //= 2
        if t <= WARP:
            return
        warps, at = t // WARP, self._totals * (t // WARP)
        self._totals += len(names)
        places = {n: at + k * warps for k, n in enumerate(names)}
        self.body += ["if lane() == 0:"]
        self.body += [f"    scratch[uint32(warp() + uint32({p}))] = {n}" for n, p in places.items()]
        self.body += ["sync()", *(f"{n} = scratch[{p}]" for n, p in places.items())]
        self.body += [f"for w in range(1, {warps}):"]
        self.body += [f"    {n}_ = scratch[uint32({p} + w)]" for n, p in places.items()]
        self.body += indented(steps)

    def launch(
        self, name: str, addresses: Mapping[str, str], rows: int, roles: Sequence[str] = ()
    ) -> Launches:
        """The finished kernel on so many rows.

        Args:
            name: of the kernel.
            addresses: type of every address by its name in the source.
            rows: how many.
            roles: of the addresses; by default their names.
        """
        kernel = Kernel(
            name,
            functions.source(self.functions, [*addresses, "rows"], self.body),
            (*addresses.values(), "uint32"),
            self.rows * self.threads,
            shared_bytes=4 * self._totals * (self.threads // WARP),
        )
        return Launches.of(kernel, -(-rows // self.rows), roles or addresses, rows)
