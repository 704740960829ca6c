"""Gradients of convolutions and of transposed ones: each is the other's by the data.

With y[p] = sum over taps t of w[t] x[p s + t d - b], the gradient by the data is a transposed convolution
of dy by w, and that by the weights a convolution of x by dy in which strides and dilations change places.
"""

from dataclasses import dataclass

from app.engine.gradient.rule import Gradients, Rule, Site
from app.engine.gradient.terms import Term


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution from a long side (spatial extents `size`) to a short side (`out`).

    `after` is such that the last window ends exactly at size + after; negative where pixels at the end
    are read by no window.
    """

    groups: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]

    @property
    def after(self) -> tuple[int, ...]:
        """Padding behind the last pixel."""
        columns = zip(self.out, self.strides, self.kernel, self.dilations, self.size, self.before)
        return tuple((o - 1) * s + (k - 1) * d + 1 - n - b for o, s, k, d, n, b in columns)

    def up(self, short: Term, weights: Term) -> Term:
        """The transposed convolution, from the short to the long side."""
        return short.op(
            "ConvTranspose",
            weights,
            group=self.groups,
            kernel_shape=self.kernel,
            strides=self.strides,
            dilations=self.dilations,
            pads=(*self.before, *(max(a, 0) for a in self.after)),
        ).pad((0,) * (len(self.size) + 2), (0, 0, *(max(-a, 0) for a in self.after)))

    def cropped(self, long: Term) -> Term:
        """The long side without pixels at its end that no window reads."""
        axes = [i for i, a in enumerate(self.after) if a < 0]
        ends = [self.size[i] + self.after[i] for i in axes]
        return long.slice([0] * len(axes), ends, [i + 2 for i in axes])

    def down(self, long: Term, weights: Term) -> Term:
        """The convolution, from the long to the short side."""
        return self.cropped(long).op(
            "Conv",
            weights,
            group=self.groups,
            kernel_shape=self.kernel,
            strides=self.strides,
            dilations=self.dilations,
            pads=(*self.before, *(max(a, 0) for a in self.after)),
        )

    def by_weights(self, long: Term, short: Term, samples: int, channels: int) -> Term:
        """Gradient [short channels, channels / groups, *kernel]: sums over samples and short pixels.

        Samples and channels change places; the groups of the long side's channels go beside the samples.
        """
        rank, per = len(self.size), channels // self.groups
        turned, spatial = self.cropped(long), range(2, rank + 2)
        if self.groups == 1:
            turned = turned.transpose((1, 0, *spatial))
        else:
            reached = tuple(n + min(a, 0) for n, a in zip(self.size, self.after))
            apart = turned.reshape((samples, self.groups, per, *reached))
            swapped = apart.transpose((2, 1, 0, *range(3, rank + 3)))
            turned = swapped.reshape((per, self.groups * samples, *reached))
        taps = short.transpose((1, 0, *spatial))
        found = turned.op(
            "Conv",
            taps,
            group=self.groups,
            kernel_shape=self.out,
            strides=self.dilations,
            dilations=self.strides,
            pads=(*self.before, *(max(a, 0) for a in self.after)),
        )
        return found.transpose((1, 0, *spatial))


def _numbers(s: Site, name: str, rank: int) -> tuple[int, ...]:
    return tuple(s.attribute(name, ())) or (1,) * rank


def _bias(s: Site) -> Term:
    return s.dy.sum((0, *range(2, len(s.x.shape))), keepdims=False)


def same_pads(missing: int, auto_pad: str) -> int:
    """Padding before the first pixel, of all that is missing: the smaller half, of SAME_LOWER the larger."""
    return (missing + (auto_pad == "SAME_LOWER")) // 2


def _conv_geometry(s: Site) -> Geometry:
    size, kernel, out = s.x.shape[2:], s[1].shape[2:], s.dy_shape[2:]
    rank, auto = len(size), s.attribute("auto_pad", "NOTSET")
    strides, dilations = _numbers(s, "strides", rank), _numbers(s, "dilations", rank)
    before = (tuple(s.attribute("pads", ())) or (0,) * rank)[:rank]
    if auto != "NOTSET":
        columns = zip(out, strides, kernel, dilations, size)
        missing = [max((o - 1) * t + (k - 1) * d + 1 - n, 0) for o, t, k, d, n in columns]
        before = tuple(same_pads(m, auto) if auto != "VALID" else 0 for m in missing)
    return Geometry(s.attribute("group", 1), size, out, kernel, strides, dilations, before)


def _conv(s: Site) -> Gradients:
    geometry, (samples, channels) = _conv_geometry(s), s.x.shape[:2]
    return (
        geometry.up(s.dy, s[1]),
        geometry.by_weights(s.x, s.dy, samples, channels),
        _bias(s) if s.has(2) else None,
    )


def _transpose_geometry(s: Site) -> Geometry:
    """The convolution that a transposed one is the adjoint of, its long side the output."""
    out, kernel, size = s.x.shape[2:], s[1].shape[2:], s.dy_shape[2:]
    rank, auto = len(size), s.attribute("auto_pad", "NOTSET")
    strides, dilations = _numbers(s, "strides", rank), _numbers(s, "dilations", rank)
    extra = tuple(s.attribute("output_padding", ())) or (0,) * rank
    before = (tuple(s.attribute("pads", ())) or (0,) * rank)[:rank]
    if auto == "VALID":
        before = (0,) * rank
    elif auto != "NOTSET" or "output_shape" in s.node.attributes:
        columns = zip(out, strides, kernel, dilations, size, extra)
        total = [max((o - 1) * t + e + (k - 1) * d + 1 - n, 0) for o, t, k, d, n, e in columns]
        before = tuple(t // 2 if auto == "SAME_UPPER" else (t + 1) // 2 for t in total)
    return Geometry(s.attribute("group", 1), size, out, kernel, strides, dilations, before)


def _conv_transpose(s: Site) -> Gradients:
    geometry, samples = _transpose_geometry(s), s.x.shape[0]
    return (
        geometry.down(s.dy, s[1]),
        geometry.by_weights(s.dy, s.x, samples, s.dy_shape[1]),
        _bias(s) if s.has(2) else None,
    )


ROWS = (Rule(("Conv",), _conv), Rule(("ConvTranspose",), _conv_transpose))
