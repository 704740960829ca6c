"""Parts of all products and convolutions: sizes and pitches, batches, reductions shared by blocks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from app.kernels.cuda import epilogue, storage
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import WORKSPACE, Kernel, KernelError, Launch, Ref
from app.kernels.cuda.operands import Operand
from app.kernels.cuda.source import Source
from app.kernels.cuda.tiles import Tile
from app.kernels.cuda.vectors import pointer

REDUCE_THREADS = 256


@dataclass(frozen=True, slots=True)
class Product:
    """y[i, m, n] = sum over k of a[i, m, k] b[i, n, k], or b[i, k, n] for kernels that say so.

    Rows of a, b, y and residual begin `*_row` elements apart, batches `*_batch` (0: the same for all).
    """

    m: int
    n: int
    k: int
    a_row: int
    b_row: int
    y_row: int
    residual_row: int = 0
    batch: int = 1
    a_batch: int = 0
    b_batch: int = 0
    y_batch: int = 0
    bias_batch: int = 0
    residual_batch: int = 0
    y_start: int = 0  # elements before the first row of y

    def width(self, after: Epilogue) -> int:
        """Columns that a thread may finish at a time: 16 bytes where everything is aligned to them."""
        numbers = [self.n, self.y_row, self.y_batch, self.bias_batch, self.y_start]
        if after.residual:
            numbers += [self.residual_row, self.residual_batch]
        return storage.widest(after.dtype, *numbers)


def check(product: Product, dtype: str, longest: int) -> None:
    """Refuse what the copies of 16 bytes and the indexes of 32 bits cannot do.

    Args:
        product: sizes and pitches.
        dtype: of a and b.
        longest: elements of the largest operand.

    Raises:
        KernelError: with the number that is wrong.
    """
    vector = 16 // NBYTES[dtype]
    for name in ("a_row", "b_row", "a_batch", "b_batch"):
        if getattr(product, name) % vector:
            raise KernelError(
                f"a {dtype} product with {name} = {getattr(product, name)}: expected a multiple of {vector} "
                "(16 bytes); pad the rows"
            )
    if longest >= 2**32:
        raise KernelError(f"an operand has {longest} elements, kernels index fewer than {2**32}")


SIZES = ("m", "n", "k_end", "tiles_m", "tiles_n", "b_row", "y_row")
BATCH = ("a_batch", "b_batch", "y_batch", "bias_batch", "residual_row", "residual_batch")
SPLIT = ("k_split", "y_split")  # elements of the reduction for one block; floats between their results
DOWN = 8  # tiles


def parameters(operand: Operand, shared: bool) -> tuple[str, ...]:
    """Names of the numbers that a kernel takes after its addresses; `shared`: between blocks along y."""
    return (*SIZES, *BATCH, *operand.parameters, *(SPLIT if shared else ()))


Text: TypeAlias = Callable[[Source], None]
Fetch: TypeAlias = Callable[[str], None]  # adds the copies of the next tile to the stage at an element


def kernel(
    tile: Tile,
    operand: Operand,
    after: Epilogue,
    width: int,
    shared: bool,
    *,
    dtype: str,
    label: str,
    each: int,
    stage: int,
    copies: Callable[[Source], Fetch],
    begin: Text,
    multiply: Text,
    stage_sums: Text,
    ahead: int | None = None,
    landed: tuple[str, ...] = (),
) -> Kernel:
    """The kernel of a product; its addresses are a, b, y and those of `after`, its numbers `parameters`.

    Args:
        tile: of a block.
        operand: where a comes from.
        after: what is done to sums.
        width: columns that a thread finishes at a time; divides n and all pitches of y and residual.
        shared: whether blocks along y of the grid share the reduction.
        dtype: of a and b.
        label: of the precision, for the kernel's name.
        each: elements of a tile's row.
        stage: elements of a stage.
        copies: text of what this thread copies of both operands; gives what starts the copies of a stage.
        begin: text of the sums, and of where they are read and multiplied.
        multiply: text of the products of the stage at `read`.
        stage_sums: text that brings the sums to shared memory.
        ahead: stages that are under way while one is multiplied; all but that one, if it is not told.
        landed: lines of a thread whose copies have landed, before the barrier.
    """
    ahead = tile.stages - 1 if ahead is None else ahead
    s = Source()
    with s.block(f"def kernel({', '.join(('a', 'b', 'y', *after.roles, *parameters(operand, shared)))}):"):
        _place(s, tile, after)
        _share(s, shared)
        fetch = copies(s)
        s(f"steps = uint32(uint32(k_end - k0 + {each - 1}) // uint32({each}))")
        for i in range(ahead):
            fetch(f"{i * stage}")
        begin(s)
        last = (tile.stages - 1) * stage
        s("read = uint32(0)", f"write = uint32({ahead * stage})", "step = uint32(0)")
        with s.block("while step < steps:"):
            s(f"cp_wait({ahead - 1})", *landed, "sync()")
            fetch("write")
            multiply(s)
            for name in ("read", "write"):
                s(f"{name} = uint32({name} + {stage}) if {name} != uint32({last}) else uint32(0)")
            s("step = uint32(step + 1)")
        s("cp_wait(0)", "sync()")
        stage_sums(s)
        _finish(s, tile, operand, after, width)
    parts = (operand.name, label, tile.label, after.dtype, after.label, f"w{width}", "split" * shared)
    numbers = ("uint32",) * len(parameters(operand, shared))
    return Kernel(
        "_".join(filter(None, parts)),
        s.text,
        (*[pointer(dtype)] * 2, pointer(after.dtype), *after.signature, *numbers),
        tile.threads,
        tile.minimum_blocks,
        tile.shared_bytes,
    )


def _place(s: Source, tile: Tile, after: Epilogue) -> None:
    """Text of first_m and first_n of the block's tile, and addresses of its batch.

    Blocks go down eight tiles, then across: what a wave of them reads stays in the second cache.
    """
    s(
        f"group = uint32(block_x() // uint32({DOWN} * tiles_n))",
        f"inner = uint32(block_x() - group * uint32({DOWN} * tiles_n))",
        f"down = uint32(min(uint32({DOWN}), uint32(tiles_m - group * {DOWN})))",
        "across = uint32(inner // down)",
        f"first_m = uint32(uint32(group * {DOWN} + inner - across * down) * {tile.m})",
        f"first_n = uint32(across * {tile.n})",
    )
    for role in ("a", "b", "y", *after.roles):
        s(f"{role} = advance({role}, int64(block_z()) * int64({role}_batch))")


def _share(s: Source, shared: bool) -> None:
    """Text of k0 and k_end, where the block's part of the reduction begins and ends."""
    if not shared:
        s("k0 = uint32(0)")
        return
    s(
        "k0 = uint32(block_y() * k_split)",
        "k_end = uint32(min(k_end, uint32(k0 + k_split)))",
        "y = advance(y, int64(block_y()) * int64(y_split))",
    )


def _finish(s: Source, tile: Tile, operand: Operand, after: Epilogue, width: int) -> None:
    """Text that brings `sums` in shared memory to the output, `width` columns of a row at a time."""
    across = tile.n // width
    names = [f"v{i}" for i in range(width)]
    with s.block(f"for i in range({tile.m * across // tile.threads}):"):
        s(
            f"item = uint32(thread() + uint32(i) * uint32({tile.threads}))",
            f"r = uint32(item // uint32({across}))",
            f"c = uint32((item - r * {across}) * {width})",
            "at_m = uint32(first_m + r)",
            "at_n = uint32(first_n + c)",
        )
        with s.block("if (at_m < m) & (at_n < n):"):
            storage.load(s, "float32", "sums", f"uint32(r * {tile.staging_row} + c)", names)
            operand.output(s)
            if after.residual:
                s("to_r = uint32(at_m * residual_row + at_n)")
            epilogue.write(s, after, names, "at_n", "to_y", "to_r")


def reduction(product: Product, after: Epilogue, splits: int) -> Launch:
    """Y = epilogue(sum over splits of workspace[split, i, m, n])."""
    width = min(4, product.width(after))
    numbers = {
        "m": product.m,
        "n": product.n,
        "splits": splits,
        "split": product.batch * product.m * product.n,
        **{name: getattr(product, name) for name in ("y_row", *BATCH[2:])},
    }
    s = Source()
    with s.block(f"def kernel(workspace, y, {', '.join((*after.roles, *numbers))}):"):
        names = [f"v{i}" for i in range(width)]
        more = [f"w{i}" for i in range(width)]
        s(
            f"item = uint32((uint32(block_x() * {REDUCE_THREADS}) + thread()) * {width})",
            "at_m = uint32(item // uint32(n))",
            "at_n = uint32(item - at_m * n)",
            "workspace = advance(workspace, int64(block_z()) * int64(m) * int64(n))",
        )
        for role in ("y", *after.roles):
            s(f"{role} = advance({role}, int64(block_z()) * int64({role}_batch))")
        with s.block("if at_m < m:"):
            storage.load(s, "float32", "workspace", "item", names)
            s("i = uint32(1)")
            with s.block("while i < splits:"):
                s("workspace = advance(workspace, int64(split))")
                storage.load(s, "float32", "workspace", "item", more)
                s(*(f"{v} = {v} + {w}" for v, w in zip(names, more, strict=True)))
                s("i = uint32(i + 1)")
            s("to_y = uint32(at_m * y_row + at_n)", "to_r = uint32(at_m * residual_row + at_n)")
            epilogue.write(s, after, names, "at_n", "to_y", "to_r")
    roles = (WORKSPACE, "y", *after.roles)
    kernel = Kernel(
        "_".join(filter(None, ("sum_splits", after.dtype, after.label, f"w{width}"))),
        s.text,
        ("float32*", pointer(after.dtype), *after.signature, *("uint32",) * len(numbers)),
        REDUCE_THREADS,
    )
    blocks = -(-product.m * product.n // (width * REDUCE_THREADS))
    return Launch(kernel, (blocks, 1, product.batch), (*(Ref(role) for role in roles), *numbers.values()))


def to_workspace(product: Product, splits: int) -> tuple[Product, Epilogue, int]:
    """(the product whose sums go to the workspace, its epilogue, bytes of the workspace)."""
    size = product.m * product.n
    plain = replace(
        product, y_row=product.n, y_batch=size, bias_batch=0, residual_row=0, residual_batch=0, y_start=0
    )
    return plain, Epilogue(), 4 * splits * product.batch * size
