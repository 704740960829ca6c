"""Attention as every kernel of it takes it, and the source text that these kernels share."""

import math
from dataclasses import dataclass

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import check_size, place
from app.kernels.cuda.kernel import Kernel, Launches
from app.kernels.cuda.vectors import device

LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Heads:
    """Where a matrix [rows, width] of every head lies: strides in elements, rows contiguous."""

    batch: int
    head: int
    row: int
    start: int = 0

    @property
    def is_aligned(self) -> bool:
        """True if every row begins at a multiple of 8 elements."""
        return not any(n % 8 for n in (self.batch, self.head, self.row, self.start))

    def place(self, head: str, row: str = "") -> str:
        """Source of where a head's matrix, or one of its rows, begins."""
        names, strides = ("b", head, row), (self.batch, self.head, self.row)
        return place(names if row else names[:2], strides, self.start)


@dataclass(frozen=True, slots=True)
class Mask:
    """Numbers added to scores, or bools, true where keys are seen: [batch, heads, rows, keys] by strides.

    Attributes:
        dtype: float32, float16, bfloat16 or bool.
        strides: in elements, 0 along broadcast axes.
        start: element of index 0.
        length: keys that it tells of; the others are hidden.
    """

    dtype: str
    strides: tuple[int, int, int, int]
    length: int
    start: int = 0

    def place(self, head: str, row: str, key: str) -> str:
        """Source of where the mask of a query row and a key lies."""
        return place(("b", head, row, key), self.strides, self.start)


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention.

    Roles: q, k, v, y, [mask], [lengths]: q[batch, heads, rows, depth], k[batch, kv_heads, keys, depth],
    v[batch, kv_heads, keys, width], y[batch, heads, rows, width] of dtype where `q` ... `y` say;
    lengths: int64[batch], keys that a batch has.

    Attributes:
        batch: sequences.
        heads: of queries; a multiple of kv_heads.
        kv_heads: of keys and values.
        rows: queries.
        keys: of them all, past ones too.
        depth: of a query and a key.
        width: of a value.
        dtype: float32, float16 or bfloat16.
        scale: of products.
        mask: or None.
        causal: whether query i sees keys up to i + past only.
        past: keys before the first query.
        zero: whether a row that sees no key is zero; else NaN.
        softcap: scores s become softcap · tanh(s / softcap); 0 for none.
        lengths: whether there is that operand.
    """

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    depth: int
    width: int
    dtype: str
    q: Heads
    k: Heads
    v: Heads
    y: Heads
    scale: float
    mask: Mask | None = None
    causal: bool = False
    past: int = 0
    zero: bool = False
    softcap: float = 0.0
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads of queries share {self.kv_heads} heads of keys unevenly")
        for name, rows, heads in (("q", self.rows, self.heads), ("k", self.keys, self.kv_heads)):
            o: Heads = getattr(self, name)
            check_size(name, o.start + self.batch * o.batch + heads * o.head + rows * o.row)

    @property
    def operands(self) -> dict[str, str]:
        """Types of the addresses, by role."""
        operands = dict.fromkeys("qkvy", vectors.pointer(self.dtype))
        operands |= {"mask": vectors.pointer(self.mask.dtype)} if self.mask else {}
        return operands | ({"lengths": "int64*"} if self.lengths else {})

    @property
    def seen(self) -> str:
        """Source of how many keys a batch has that any row may see."""
        most = min(self.keys, self.mask.length) if self.mask else self.keys
        return f"min(int32({most}), int32(lengths[b]))" if self.lengths else f"int32({most})"

    @property
    def nothing(self) -> str:
        """Source of the result of a row that sees no key."""
        return "float32(0)" if self.zero else "float32(nan)"

    def limit(self, row: str) -> str:
        """Source of how many keys a query row sees, as far as its place tells."""
        return f"min(seen, int32(int32({row}) + int32({self.past + 1})))" if self.causal else "seen"

    def block_lines(self, tile: int) -> list[str]:
        """Lines of a block's batch `b`, heads `h` and `kv`, and first query row `m0`."""
        blocks = -(-self.rows // tile)
        return [
            f"block = uint32(block_x() % uint32({blocks}))",
            f"bh = uint32(block_x() // uint32({blocks}))",
            f"h = uint32(bh % uint32({self.heads}))",
            f"b = uint32(bh // uint32({self.heads}))",
            f"kv = uint32(h // uint32({self.heads // self.kv_heads}))",
            # The last rows of a causal mask see most keys: they begin first.
            f"m0 = uint32((uint32({blocks - 1}) - block) * uint32({tile}))",
        ]

    def tile_count(self, rows: int, keys: int) -> list[str]:
        """Lines of `tiles`, which hold the keys that any row of the block sees."""
        return [
            f"last = {self.limit(f'min(uint32(m0 + uint32({rows - 1})), uint32({self.rows - 1}))')}",
            f"tiles = uint32((max(last, int32(0)) + int32({keys - 1})) // int32({keys}))",
        ]

    def score_lines(self) -> list[str]:
        """Lines of `score(s)`, of a product in the domain of exp2, and of `bias(mask, at)`, what is added."""
        if self.softcap:
            cap, inner = self.softcap * LOG2E, self.scale / self.softcap
            value = f"float32({cap!r}) * float32(tanh(s * float32({inner!r})))"
        else:
            value = f"s * float32({self.scale * LOG2E!r})"
        lines = device("score(s)", f"return {value}")
        if self.mask is None:
            return lines
        if self.mask.dtype == "bool":
            added = ["return float32(0) if mask[at] != 0 else float32(-inf)"]
        else:
            added = [
                f"x = {vectors.scalar(self.mask.dtype, 'mask[at]')}",
                f"y = x * float32({LOG2E!r})",
                # The lowest number stays one: a row that has only such ones is a mean, not NaN.
                "return float32(-3e38) if y < float32(-3e38) and x > float32(-inf) else y",
            ]
        return [*lines, *device("bias(mask, at)", *added)]

    def launches(
        self, name: str, lines: list[str], body: list[str], *, tile: int, threads: int, shared_bytes: int
    ) -> Launches:
        """The launch of a kernel whose blocks have `tile` query rows each."""
        roles, kinds = list(self.operands), tuple(self.operands.values())
        kernel = Kernel(name, functions.source(lines, roles, body), kinds, threads, shared_bytes=shared_bytes)
        return Launches.of(kernel, -(-self.rows // tile) * self.batch * self.heads, roles)
