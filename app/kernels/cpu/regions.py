"""Regions of images at places known at run time only: RoiAlign and MaxRoiPool.

Source: the ONNX operators RoiAlign, version 22, and MaxRoiPool, version 22.
"""

import math

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.extrema import like, maximum

CHANNELS = 64  # of which the pixels around a place are read together
FEW = 16  # places along a bin that are looked at one by one
MOST = 2**30  # places along a bin of a region without bounds


@njit
def region(rois, roi, axis, scale, offset, bins):
    """Start of a region (x1, y1, x2, y2) along an axis, extent of its bins; 1 wide without an offset."""
    start = rois[4 * roi + axis] * scale - offset
    extent = rois[4 * roi + 2 + axis] * scale - offset - start
    if not offset > like(offset, 0):
        extent = max(extent, like(offset, 1))
    return start, extent / like(extent, bins)


@njit
def places(size, ratio):
    """Places along a bin: a fixed number, or one for each pixel."""
    if ratio > 0:
        return ratio
    return math.ceil(size) if size < like(size, MOST) else MOST


@njit
def inside(corner, share, samples, extent):
    """Half-open range of places corner + s * share that may lie inside, of which there are few.

    Where the others are many they need not be looked at one by one.
    """
    one = like(corner, 1)
    if samples <= FEW:
        return 0, samples
    if share > like(corner, 0):
        begin = max(int(min((-one - corner) / share, like(one, MOST))) - 1, 0)
        end = int(max(min((like(one, extent) - corner) / share, like(one, MOST)), -one)) + 2
        return begin, max(min(end, samples), begin)
    return 0, samples if share == share else 0


@njit
def spans(first, place, weight, at, start, size, bins, samples, extent):
    """Pixels that the places of each bin along an axis read: (first pixel, pixels) and their weights.

    Bin b has `samples` places from start + b * size on. Its weights, at + b * extent and following, are those
    of the linear interpolation, summed up: the average over a product of places is a product of sums along
    the axes. A place more than one pixel outside counts as zero.
    """
    zero, one = like(start, 0), like(start, 1)
    share = size / like(one, max(samples, 1))
    for b in range(bins):
        corner = start + like(one, b) * size + like(one, 0.5) * share
        begin, end = inside(corner, share, samples, extent)
        line = at + b * extent
        low, high = extent, -1
        for s in range(begin, end):
            v = corner + like(one, s) * share
            if -one <= v <= like(one, extent):
                v = max(v, zero)
                i = min(int(v), extent - 1)
                f = v - like(one, i) if i < extent - 1 else zero
                for k in range(i if high < 0 else high + 1, min(i + 2, extent)):
                    weight[line + k] = zero
                for k in range(i, low if high >= 0 else i):
                    weight[line + k] = zero
                low = min(low, i)
                high = max(high, min(i + 1, extent - 1))
                weight[line + i] += one - f
                if i + 1 < extent:
                    weight[line + i + 1] += f
        first[place + 2 * b] = low
        first[place + 2 * b + 1] = max(high - low + 1, 0)


_ALIGN = """\
from app.kernels.cpu.extrema import like
from app.kernels.cpu.regions import places, region, spans
{more}

def kernel(
    x, rois, images, y, scales, first, weight, {parameters}count, channels, h, w, oh, ow, ratio,
    begin, end, thread
):
    rows = thread * 2 * (oh + ow)
    columns = rows + 2 * oh
    down = thread * (oh * h + ow * w)
    along = down + oh * h
    zero = like(scales[0], 0)
    for roi in range(begin, end):
        image = images[roi]
        left, bin_w = region(rois, roi, 0, scales[0], scales[1], ow)
        top, bin_h = region(rois, roi, 1, scales[0], scales[1], oh)
        high, wide = places(bin_h, ratio), places(bin_w, ratio)
        spans(first, rows, weight, down, top, bin_h, oh, high, h)
        spans(first, columns, weight, along, left, bin_w, ow, wide, w)
        share = like(zero, 1) / (like(zero, max(high, 1)) * like(zero, max(wide, 1)))
        if image < 0 or image >= count:
            image = 0
            share = zero / zero
        for c in range(channels):
            plane = {plane}
            target = {target}
            for i in range(oh):
                row, lines = first[rows + 2 * i], first[rows + 2 * i + 1]
                for j in range(ow):
                    column, n = first[columns + 2 * j], first[columns + 2 * j + 1]
                    total = {zero}
                    for a in range(row, row + lines):
                        part = {zero}
                        for b in range(column, column + n):
                            part = part + {pixel}
                        total = total + {line_weight} * part
                    {store}
"""


def roi_align(lanes: int = 0) -> str:
    """Source of a kernel for y[r, c] = averages over the bins of region r of image images[r].

    x: T[count, channels, h, w]; rois: T[r, 4]; images: int64[r]; y: T[r, channels, oh, ow]; scales: T[2],
    spatial scale and offset in pixels; scratch of a thread: first: int64[2 * (oh + ow)], weight: T[oh * h +
    ow * w]. `ratio` is the number of places along a bin, 0 where it follows from the region. A region of no
    image is NaN. Units are regions. With `lanes`, so many channels of a pixel lie together and pixels `step`
    apart; images have `x_image` elements, regions `y_image`, and `vectors: int64[channels, 2]` are offsets in
    these.
    """
    if not lanes:
        return _ALIGN.format(
            more="",
            parameters="",
            plane="(image * channels + c) * h * w",
            target="(roi * channels + c) * oh * ow",
            zero="zero",
            pixel="weight[along + j * w + b] * x[plane + a * w + b]",
            line_weight="weight[down + i * h + a]",
            store="y[target + i * ow + j] = total * share",
        )
    return _ALIGN.format(
        more="from app.kernels.cpu.codegen.vectors import load, splat, store\n",
        parameters="vectors, x_image, y_image, step, ",
        plane="image * x_image + vectors[2 * c]",
        target="roi * y_image + vectors[2 * c + 1]",
        zero=f"splat(zero, {lanes})",
        pixel=f"splat(weight[along + j * w + b], {lanes}) * load(x, plane + (a * w + b) * step, {lanes})",
        line_weight=f"splat(weight[down + i * h + a], {lanes})",
        store=f"store(y, target + (i * ow + j) * step, total * splat(share, {lanes}))",
    )


@njit
def corners(v, extent):
    """Pixels around a place, the weight of the second, and False where it counts as zero."""
    zero = like(v, 0)
    if not (like(v, -1) <= v <= like(v, extent)):
        return 0, 0, zero, False
    v = max(v, zero)
    i = min(int(v), extent - 1)
    if i == extent - 1:
        return i, i, zero, True
    return i, i + 1, v - like(v, i), True


def roi_align_max(x, rois, images, y, scales, count, channels, h, w, oh, ow, ratio, begin, end):
    """As `roi_align`, the largest of the four weighted pixels of all places. Units are regions."""
    zero, one = like(scales[0], 0), like(scales[0], 1)
    bins, image_size = oh * ow, h * w
    for roi in range(begin, end):
        image = images[roi]
        left, bin_w = region(rois, roi, 0, scales[0], scales[1], ow)
        top, bin_h = region(rois, roi, 1, scales[0], scales[1], oh)
        high, wide = places(bin_h, ratio), places(bin_w, ratio)
        step_h, step_w = bin_h / like(one, max(high, 1)), bin_w / like(one, max(wide, 1))
        is_image = 0 <= image < count
        for low in range(0, channels, CHANNELS):
            size = min(CHANNELS, channels - low)
            plane, target = (image * channels + low) * image_size, (roi * channels + low) * bins
            for unit in range(bins):
                i, j = unit // ow, unit % ow
                at = target + unit
                a, b = seen(top + like(one, i) * bin_h, step_h, high, h)
                c, d = seen(left + like(one, j) * bin_w, step_w, wide, w)
                least = first_maximum(zero, high, wide, (b - a, d - c), is_image)
                for k in range(size):
                    y[at + k * bins] = least
                for r in range(a, b if is_image else a):
                    v = top + like(one, i) * bin_h + (like(one, r) + like(one, 0.5)) * step_h
                    row, next_row, f, is_row = corners(v, h)
                    for s in range(c, d):
                        u = left + like(one, j) * bin_w + (like(one, s) + like(one, 0.5)) * step_w
                        column, next_column, g, is_column = corners(u, w)
                        if is_row and is_column:
                            first, second = plane + row * w, plane + next_row * w
                            _largest_corner(
                                x, first + column, first + next_column, second + column, second + next_column,
                                y, at,
                                (one - f) * (one - g), (one - f) * g, f * (one - g), f * g,
                                size, image_size, bins,
                            )  # fmt: skip
                        else:
                            for k in range(size):
                                y[at + k * bins] = maximum(zero, y[at + k * bins])


@njit
def seen(start, step, samples, extent):
    """The places of a bin from `start` on that may lie inside."""
    return inside(start + like(start, 0.5) * step, step, samples, extent)


@njit
def first_maximum(zero, high, wide, shape, is_image):
    """First value of maxima of `high * wide` places, of which those in a grid of this shape are looked at.

    Zero counts for all others, and where there is none; NaN where there is no image.
    """
    if not is_image:
        return zero / zero
    if high > 0 and wide > 0 and shape == (high, wide):
        return like(zero, -math.inf)
    return zero


@njit
def _largest_corner(x, p0, p1, p2, p3, y, at, w0, w1, w2, w3, size, image_size, bins):
    """The larger of each y and four weighted pixels of its plane."""
    for c in range(size):
        plane = c * image_size
        upper = maximum(w0 * x[p0 + plane], w1 * x[p1 + plane])
        lower = maximum(w2 * x[p2 + plane], w3 * x[p3 + plane])
        y[at + c * bins] = maximum(maximum(upper, lower), y[at + c * bins])


_LARGEST = """\
from app.kernels.cpu.codegen.vectors import load, splat, store
from app.kernels.cpu.extrema import like, maximum
from app.kernels.cpu.regions import corners, first_maximum, places, region, seen


def kernel(
    x, rois, images, y, scales, vectors, x_image, y_image, step, count, channels, h, w, oh, ow, ratio,
    begin, end
):
    zero, one = like(scales[0], 0), like(scales[0], 1)
    for roi in range(begin, end):
        image = images[roi]
        left, bin_w = region(rois, roi, 0, scales[0], scales[1], ow)
        top, bin_h = region(rois, roi, 1, scales[0], scales[1], oh)
        high, wide = places(bin_h, ratio), places(bin_w, ratio)
        step_h, step_w = bin_h / like(one, max(high, 1)), bin_w / like(one, max(wide, 1))
        is_image = 0 <= image < count
        for unit in range(oh * ow):
            i, j = unit // ow, unit % ow
            to = roi * y_image + unit * step
            a, b = seen(top + like(one, i) * bin_h, step_h, high, h)
            c, d = seen(left + like(one, j) * bin_w, step_w, wide, w)
            least = splat(first_maximum(zero, high, wide, (b - a, d - c), is_image), {lanes})
            for k in range(channels):
                store(y, to + vectors[2 * k + 1], least)
            for r in range(a, b if is_image else a):
                v = top + like(one, i) * bin_h + (like(one, r) + like(one, 0.5)) * step_h
                row, next_row, f, is_row = corners(v, h)
                for s in range(c, d):
                    u = left + like(one, j) * bin_w + (like(one, s) + like(one, 0.5)) * step_w
                    column, next_column, g, is_column = corners(u, w)
                    if is_row and is_column:
                        first = image * x_image + row * w * step
                        second = image * x_image + next_row * w * step
                        m, n = first + column * step, first + next_column * step
                        p, q = second + column * step, second + next_column * step
                        wm, wn = splat((one - f) * (one - g), {lanes}), splat((one - f) * g, {lanes})
                        wp, wq = splat(f * (one - g), {lanes}), splat(f * g, {lanes})
                        for k in range(channels):
                            source, target = vectors[2 * k], to + vectors[2 * k + 1]
                            best = load(y, target, {lanes})
                            best = maximum(wm * load(x, m + source, {lanes}), best)
                            best = maximum(wn * load(x, n + source, {lanes}), best)
                            best = maximum(wp * load(x, p + source, {lanes}), best)
                            store(y, target, maximum(wq * load(x, q + source, {lanes}), best))
                    else:
                        for k in range(channels):
                            target = to + vectors[2 * k + 1]
                            store(y, target, maximum(splat(zero, {lanes}), load(y, target, {lanes})))
"""


def roi_align_largest(lanes: int) -> str:
    """Source of a kernel as `roi_align_max`, with operands as the kernel of `roi_align` of so many lanes."""
    return _LARGEST.format(lanes=lanes)


def max_roi_pool(x, rois, y, scale, line, edges, count, channels, h, w, oh, ow, begin, end, thread):
    """y[r, c] = maxima over the bins of region r, rounded outwards to pixels; 0 where a bin is empty.

    x: T[count, channels, h, w]; rois: T[r, 5], (image, x1, y1, x2, y2); y: T[r, channels, oh, ow];
    scale: T[1]; line: T[threads, w]; edges: int64[threads, 2, oh + ow], half-open pixels of the bins of a
    region. A region of no image is NaN. Units are planes of y.
    """
    zero = like(scale[0], 0)
    spare, rows, columns = thread * w, thread * 2 * (oh + ow), thread * 2 * (oh + ow) + 2 * oh
    known = -1
    for unit in range(begin, end):
        roi, c = unit // channels, unit % channels
        image = int(rois[5 * roi])
        if image < 0 or image >= count:
            for i in range(oh * ow):
                y[unit * oh * ow + i] = zero / zero
            continue
        if roi != known:
            known = roi
            bins_of(rois, 5 * roi + 2, scale[0], edges, rows, oh, h)
            bins_of(rois, 5 * roi + 1, scale[0], edges, columns, ow, w)
        begin_w, end_w = edges[columns], edges[columns + 2 * ow - 1]
        target = unit * oh * ow
        for i in range(oh):
            low, high = edges[rows + 2 * i], edges[rows + 2 * i + 1]
            if low >= high:
                for j in range(ow):
                    y[target + j] = zero
                target += ow
                continue
            source = ((image * channels + c) * h + low) * w
            for b in range(begin_w, end_w):
                line[spare + b] = x[source + b]
            for a in range(1, high - low):
                for b in range(begin_w, end_w):
                    v = x[source + a * w + b]
                    line[spare + b] = v if v > line[spare + b] else line[spare + b]
            for j in range(ow):
                first, last = edges[columns + 2 * j], edges[columns + 2 * j + 1]
                best = line[spare + first] if first < last else zero
                for b in range(first + 1, last):
                    v = line[spare + b]
                    best = v if v > best else best
                y[target + j] = best
            target += ow


@njit
def bins_of(rois, at, scale, edges, to, count, extent):
    """Half-open pixels of the bins of a region along an axis, from rois[at] to rois[at + 2]."""
    one = like(scale, 1)
    start, stop = pixel_of(rois[at], scale), pixel_of(rois[at + 2], scale)
    size = like(one, max(stop - start + 1, 1)) / like(one, count)
    for i in range(count):
        edges[to + 2 * i] = min(max(math.floor(like(one, i) * size) + start, 0), extent)
        edges[to + 2 * i + 1] = min(max(math.ceil(like(one, i + 1) * size) + start, 0), extent)


@njit
def pixel_of(v, scale):
    """The pixel nearest to a place, of which there are not more than MOST."""
    most = like(v, MOST)
    return math.floor(max(min(v * scale + like(v, 0.5), most), -most))
