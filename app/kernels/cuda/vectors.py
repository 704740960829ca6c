"""Functions of kernels, as text, that read and write tuples of computed values.

16-bit floats are computed as float32, a bool as a truth value; see `app.kernels.expressions`.
"""

from app.kernels.cuda.geometry import NBYTES

WORDS = {1: "x1", 2: "x2", 4: "x4"}
HALVES = {"float16": "f16", "bfloat16": "bf16"}
POINTERS = {"float16": "uint16*", "bfloat16": "uint16*", "bool": "uint8*"}


def pointer(dtype: str) -> str:
    """The type of the address of a tensor, as signatures of kernels have it."""
    return POINTERS.get(dtype, f"{dtype}*")


def load(name: str, dtype: str, width: int) -> list[str]:
    """Lines of `name(p, i)`: the tuple of `width` values from element i on, which is aligned to it."""
    return device(f"{name}(p, i)", *_load(dtype, width))


def store(name: str, dtype: str, width: int) -> list[str]:
    """Lines of `name(p, i, v)`: a tuple goes to elements i and on, aligned to it."""
    return device(f"{name}(p, i, v)", *_store(dtype, width))


def scalar(dtype: str, source: str) -> str:
    """Source of a computed value from an element in memory."""
    if dtype in HALVES:
        return f"{HALVES[dtype]}_f32({source})"
    return f"({source} != 0)" if dtype == "bool" else source


def kept(dtype: str, source: str) -> str:
    """Source of an element in memory from a computed value."""
    if dtype in HALVES:
        return f"f32_{HALVES[dtype]}({source})"
    return f"uint8({source})" if dtype == "bool" else source


def device(head: str, *body: str) -> list[str]:
    """Lines of a function that a kernel calls; `head` is its name with parameters."""
    return ["@device", f"def {head}:", *(f"    {line}" for line in body), ""]


def _at(j: int) -> str:
    return f"uint32(i + uint32({j}))" if j else "i"


def _load(dtype: str, width: int) -> list[str]:
    nbytes = NBYTES[dtype]
    if nbytes > 4 or width * nbytes < 4:  # 8-byte numbers are rare: indices and shapes
        return [f"return ({', '.join(scalar(dtype, f'p[{_at(j)}]') for j in range(width))},)"]
    lines, values = [], []
    words = width * nbytes // 4
    step = min(words, 4)
    per_word = 4 // nbytes
    for first in range(0, words, step):
        if dtype == "float32":
            lines.append(f"w{first} = ld_f32{WORDS[step]}(p, {_at(first)})" if step > 1 else "")
        else:
            lines.append(f"w{first} = ld_u32{WORDS[step]}(p, {_at(first * per_word)})")
        for k in range(step):
            word = f"w{first}[{k}]" if step > 1 else f"w{first}"
            if dtype == "float32":
                values.append(word if step > 1 else f"p[{_at(first)}]")
            elif dtype in HALVES:
                lines.append(f"h{first + k} = {HALVES[dtype]}x2_f32({word})")
                values += [f"h{first + k}[0]", f"h{first + k}[1]"]
            elif nbytes == 4:
                values.append(f"{dtype}({word})")
            else:
                size = 8 * nbytes
                parts = [f"({word} >> uint32({size * j})) & uint32({2**size - 1})" for j in range(per_word)]
                values += [_part(dtype, p) for p in parts]
    return [*(line for line in lines if line), f"return ({', '.join(values)},)"]


def _part(dtype: str, source: str) -> str:
    return f"({source} != 0)" if dtype == "bool" else f"{dtype}({source})"


def _store(dtype: str, width: int) -> list[str]:
    nbytes = NBYTES[dtype]
    if nbytes > 4 or width * nbytes < 4:
        return [f"p[{_at(j)}] = {kept(dtype, f'v[{j}]')}" for j in range(width)]
    words = width * nbytes // 4
    step = min(words, 4)
    per_word = 4 // nbytes
    lines = []
    for first in range(0, words, step):
        if dtype == "float32" and step == 1:
            lines.append(f"p[{_at(first)}] = v[{first}]")
            continue
        parts = [_word(dtype, per_word * (first + k)) for k in range(step)]
        kind = "f32" if dtype == "float32" else "u32"
        lines.append(f"st_{kind}{WORDS[step]}(p, {_at(first * per_word)}, {', '.join(parts)})")
    return lines


def _word(dtype: str, j: int) -> str:
    """Source of what goes to one word: elements j and on of the tuple."""
    if dtype == "float32":
        return f"v[{j}]"
    if dtype in HALVES:
        return f"f32_{HALVES[dtype]}x2(v[{j}], v[{j + 1}])"
    nbytes = NBYTES[dtype]
    if nbytes == 4:
        return f"uint32(v[{j}])"
    mask = 2 ** (8 * nbytes) - 1
    return (
        "uint32("
        + " | ".join(
            f"((uint32(v[{j + k}]) & uint32({mask})) << uint32({8 * nbytes * k}))" for k in range(4 // nbytes)
        )
        + ")"
    )
