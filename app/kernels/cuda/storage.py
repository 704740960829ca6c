"""How elements of a storage type are read as float32 and written: 1, 2, 4 or 8 at a time, up to 16 bytes."""

from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.source import Source
from app.kernels.cuda.vectors import HALVES, kept, scalar


def widest(dtype: str, *divisors: int) -> int:
    """Elements of the widest vector, at most 16 bytes, that divides all of some sizes and pitches."""
    width = 16 // NBYTES[dtype]
    while any(d % width for d in divisors):
        width //= 2
    return width


def load(s: Source, dtype: str, pointer: str, index: str, names: list[str]) -> None:
    """`names` = float32 of elements from `index`, a uint32 that is a multiple of their number."""
    width = len(names)
    if width == 1:
        s(f"{names[0]} = {scalar(dtype, f'{pointer}[{index}]')}")
    elif dtype == "float32":
        for i in range(0, width, 4):
            part = names[i : i + 4]
            s(f"{', '.join(part)} = ld_f32x{len(part)}({pointer}, uint32({index} + {i}))")
    else:
        words = [f"{names[0]}_{i}" for i in range(width // 2)]
        s(f"{', '.join(words)} = ld_u32x{width // 2}({pointer}, uint32({index}))")
        for i, word in enumerate(words):
            s(f"{names[2 * i]}, {names[2 * i + 1]} = {HALVES[dtype]}x2_f32({word})")


def store(s: Source, dtype: str, pointer: str, index: str, names: list[str]) -> None:
    """Elements from `index` = float32 `names`, rounded to nearest even."""
    width = len(names)
    if width == 1:
        s(f"{pointer}[{index}] = {kept(dtype, names[0])}")
    elif dtype == "float32":
        for i in range(0, width, 4):
            part = names[i : i + 4]
            s(f"st_f32x{len(part)}({pointer}, uint32({index} + {i}), {', '.join(part)})")
    else:
        words = [f"f32_{HALVES[dtype]}x2({names[i]}, {names[i + 1]})" for i in range(0, width, 2)]
        s(f"st_u32x{width // 2}({pointer}, uint32({index}), {', '.join(words)})")
