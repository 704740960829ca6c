"""Discrete Fourier transforms of any length, several at once: a register holds the same element of each.

A transform of a length whose prime factors are all in RADICES is a chain of stages, one a factor, that leave
their result in order. Any other length is a cyclic convolution with a chirp, of a length with such factors.

Sources: Stockham, 1966, "High-speed convolution and correlation" (stages that sort); Bluestein, 1970, "A
linear filtering approach to the computation of discrete Fourier transform" (chirps).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

RADICES = (4, 2, 3, 5, 7, 11, 13)
Table = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def factors(n: int) -> tuple[int, ...] | None:
    """Radices of the stages for a length; None where a prime factor is too large."""
    found = []
    for radix in RADICES:
        while n % radix == 0 and n > 1:
            found.append(radix)
            n //= radix
    return tuple(found) if n == 1 else None


def convolution_length(n: int) -> int:
    """The shortest length with factors 2, 3 and 5 that holds a convolution of n with 2 n - 1 elements."""
    shortest: int = 2 ** math.ceil(math.log2(2 * n - 1))
    for three in range(12):
        for five in range(8):
            odd = 3**three * 5**five
            shortest = min(shortest, odd * 2 ** max(math.ceil(math.log2((2 * n - 1) / odd)), 0))
    return shortest


def stages(n: int) -> tuple[Table, Floats]:
    """int64[stages, 4]: radix, length of what follows, of what came before, first twiddle; [twiddles, 2].

    The twiddles of a stage are exp(-2 pi i p k / (radix m)) for p < m, 0 < k < radix.
    """
    rows, tables, m, before, first = [], [np.ones((1, 2))], n, 1, 1
    for radix in factors(n) or ():
        m //= radix
        turns = np.arange(m)[:, None] * np.arange(1, radix)[None, :] / (radix * m)
        angles = -2 * np.pi * turns.reshape(-1)
        rows.append((radix, m, before, first))
        tables.append(np.stack([np.cos(angles), np.sin(angles)], 1))
        first += angles.size
        before *= radix
    return np.array(rows, np.int64).reshape(-1, 4), np.concatenate(tables)


def chirp(n: int, length: int) -> Floats:
    """[n + length, 2]: exp(-pi i j^2 / n), j < n; transform of the conjugate, wrapped, over the length."""
    angles = -np.pi * (np.arange(n, dtype=np.int64) ** 2 % (2 * n)) / n
    wave = np.cos(angles) + 1j * np.sin(angles)
    wrapped = np.zeros(length, np.complex128)
    wrapped[:n] = wave.conj()
    if n > 1:
        wrapped[1 - n :] = wave[:0:-1].conj()
    both = np.concatenate([wave, np.fft.fft(wrapped) / length])
    return np.stack([both.real, both.imag], 1)


def _butterfly(radix: int, lanes: int) -> list[str]:
    """Lines that make z0r, z0i, z1r ... the transform of a0r, a0i, a1r ..."""
    if radix == 2:
        return [f"z0{c} = a0{c} + a1{c}\nz1{c} = a0{c} - a1{c}" for c in "ri"]
    if radix == 4:
        lines = [
            f"s0{c} = a0{c} + a2{c}\ns1{c} = a1{c} + a3{c}\nd0{c} = a0{c} - a2{c}\nd1{c} = a1{c} - a3{c}"
            for c in "ri"
        ]
        lines += [f"z0{c} = s0{c} + s1{c}\nz2{c} = s0{c} - s1{c}" for c in "ri"]
        return [*lines, "z1r = d0r + d1i\nz1i = d0i - d1r\nz3r = d0r - d1i\nz3i = d0i + d1r"]
    half = radix // 2
    lines = [
        f"t{j}{c} = a{j}{c} + a{radix - j}{c}\nu{j}{c} = a{j}{c} - a{radix - j}{c}"
        for j in range(1, half + 1)
        for c in "ri"
    ]
    lines += [f"z0{c} = a0{c} + " + " + ".join(f"t{j}{c}" for j in range(1, half + 1)) for c in "ri"]
    for k in range(1, half + 1):
        for c, other in ("ri", "ir"):
            even, odd = f"a0{c}", []
            for j in range(1, half + 1):
                angle = 2 * math.pi * (j * k % radix) / radix
                even += f" + splat(like(one, {math.cos(angle)!r}), {lanes}) * t{j}{c}"
                odd.append(f"splat(like(one, {math.sin(angle)!r}), {lanes}) * u{j}{other}")
            lines.append(f"e{c} = {even}\no{c} = {' + '.join(odd)}")
        lines.append(f"z{k}r = er + or_\nz{k}i = ei - oi\nz{radix - k}r = er - or_\nz{radix - k}i = ei + oi")
    return [line.replace("or =", "or_ =") for line in lines]


def _indented(lines: list[str], depth: int) -> str:
    return "\n".join(" " * depth + row for line in lines for row in line.split("\n"))


def _stage(radix: int, lanes: int) -> str:
    """A function that runs one stage from buffers a (real) and b (imaginary) to c and d."""
    loads = [
        f"a{j}{part} = load(w, {buffer} + (s * (p + m * {j}) + q) * {lanes}, {lanes})"
        for j in range(radix)
        for part, buffer in ("ra", "ib")
    ]
    twiddles, stores = [], []
    for k in range(radix):
        target = f"(s * ({radix} * p + {k}) + q) * {lanes}"
        real, imaginary = f"z{k}r", f"z{k}i"
        if k:
            at = f"2 * (first + p * {radix - 1} + {k - 1})"
            twiddles.append(
                f"c{k} = splat(twiddles[{at}], {lanes})\ns{k}_ = splat(twiddles[{at} + 1], {lanes})"
            )
            real, imaginary = f"z{k}r * c{k} - z{k}i * s{k}_", f"z{k}r * s{k}_ + z{k}i * c{k}"
        stores.append(f"store(w, c + {target}, {real})\nstore(w, d + {target}, {imaginary})")
    return f"""\
@njit
def stage{radix}(w, a, b, c, d, twiddles, first, m, s):
    one = like(twiddles[0], 1)
    for p in range(m):
{_indented(twiddles, 8)}
        for q in range(s):
{_indented([*loads, *_butterfly(radix, lanes), *stores], 12)}


"""


_SOURCE = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.vectors import load, splat, store
from app.kernels.cpu.extrema import like


{stages}
@njit
def transform(w, a, b, c, d, twiddles, table, count):
    for i in range(count):
        radix, m, s, first = table[4 * i], table[4 * i + 1], table[4 * i + 2], table[4 * i + 3]
        {choice}
        a, b, c, d = c, d, a, b
    return a, b


@njit
def multiply(w, a, b, size, wave, first, stop):
    for j in range(size):
        x, y = load(w, a + j * {L}, {L}), load(w, b + j * {L}, {L})
        c, s = splat(wave[2 * (first + j)], {L}), splat(wave[2 * (first + j) + 1], {L})
        store(w, a + j * {L}, x * c - y * s)
        store(w, b + j * {L}, x * s + y * c)


def kernel(
    x, y, window, twiddles, table, wave, w, places, count, total, inner, taken, n, length, bins, complex_,
    x_outer, x_inner, x_step, y_outer, y_inner, y_step, begin, end, thread,
):
    one, zero = like(twiddles[0], 1), like(twiddles[0], 0)
    size = length * {L}
    spare = thread * 4 * size
    at = thread * 2 * {L}
    scale = {scale}
    for unit in range(begin, end):
        a, b, c, d = spare, spare + size, spare + 2 * size, spare + 3 * size
        for v in range({L}):
            t = min(unit * {L} + v, total - 1)
            places[at + v] = t // inner * x_outer + t % inner * x_inner
            places[at + {L} + v] = t // inner * y_outer + t % inner * y_inner
        for j in range(taken):
            factor = {window}
            for v in range({L}):
                place = places[at + v] + j * x_step
                w[{first} + j * {L} + v] = x[place] * factor
                w[{second} + j * {L} + v] = x[place + 1] * factor if complex_ else zero
        for j in range(taken * {L}, size):
            w[a + j] = zero
            w[b + j] = zero
{mirrored}        {bluestein}
        if not complex_:  # the first and the middle element of a spectrum of real numbers are real
            for v in range({L}):
                w[{second} + v] = zero
                if n % 2 == 0:
                    w[{second} + n // 2 * {L} + v] = zero
        lanes = min(total - unit * {L}, {L})
        for k in range(bins):
            for v in range(lanes):
                place = places[at + {L} + v] + k * y_step
                y[place] = w[{first} + k * {L} + v] * scale
{imaginary}"""

_IMAGINARY = """\
                y[place + 1] = w[{second} + k * {L} + v] * scale
"""

# The other half of the spectrum of real numbers.
_MIRRORED = """\
        for v in range({L}):
            w[{second} + v] = zero
            if n % 2 == 0 and taken > n // 2:
                w[{second} + n // 2 * {L} + v] = zero
        for j in range(n // 2 + 1, n):
            if n - j < taken:
                for v in range({L}):
                    w[{first} + j * {L} + v] = w[{first} + (n - j) * {L} + v]
                    w[{second} + j * {L} + v] = -w[{second} + (n - j) * {L} + v]
"""

_PLAIN = "a, b = transform(w, a, b, c, d, twiddles, table, count)"
_CHIRPED = """\
multiply(w, a, b, n, wave, 0, n)
        a, b = transform(w, a, b, c, d, twiddles, table, count)
        c, d = 2 * spare + 2 * size - a, 2 * spare + 4 * size - b
        multiply(w, a, b, length, wave, n, length)
        b, a = transform(w, b, a, d, c, twiddles, table, count)
        multiply(w, a, b, bins, wave, 0, n)"""


def transforms(
    lanes: int, radices: tuple[int, ...], inverse: bool, windowed: bool, chirped: bool, real: bool
) -> str:
    """Source of a kernel for transforms of length n, so many at once.

    Transform t of `total` reads `taken` elements of x, `x_step` apart, from t // inner * x_outer + t % inner
    * x_inner on, real numbers or pairs with `complex_`, and zeros up to n; it writes `bins` pairs of y in the
    same manner. `inverse` divides by n; if what it makes is `real`, x is one half of the spectrum, and y has
    no pairs. `windowed` multiplies element j by window[j]. `table`, `count` and `twiddles` are stages of
    `length`, `wave` the chirp where that is not n. Scratch of a thread: w: T[4, length, lanes]; places:
    int64[2, lanes]. Units are `lanes` transforms.
    """
    chosen = [f"{'el' * (i > 0)}if radix == {r}:" for i, r in enumerate(radices)]
    calls = [f"    stage{r}(w, a, b, c, d, twiddles, first, m, s)" for r in radices]
    choice = "\n        ".join(line for pair in zip(chosen, calls) for line in pair) or "pass"
    first, second = ("b", "a") if inverse else ("a", "b")
    names = {"first": first, "second": second, "L": lanes}
    return _SOURCE.format(
        mirrored=_MIRRORED.format(**names) if real else "",
        imaginary="" if real else _IMAGINARY.format(**names),
        stages="".join(_stage(r, lanes) for r in radices),
        choice=choice,
        L=lanes,
        scale="one / like(one, n)" if inverse else "one",
        window="window[j]" if windowed else "one",
        first=first,
        second=second,
        bluestein=_CHIRPED if chirped else _PLAIN,
    )


@dataclass(frozen=True, slots=True)
class FourierPlan:
    """Stages of a transform, of its own length or of a convolution with a chirp."""

    length: int
    radices: tuple[int, ...]
    table: Table
    twiddles: Floats
    wave: Floats


@lru_cache(maxsize=64)
def plan(n: int) -> FourierPlan:
    """Stages of a transform of n elements; the chirp has one pair where there is none."""
    own = factors(n)
    length = n if own is not None else convolution_length(n)
    used = own if own is not None else factors(length) or ()
    wave = np.zeros((1, 2)) if own is not None else chirp(n, length)
    return FourierPlan(length, tuple(sorted(set(used))), *stages(length), wave)
