"""Images put together: columns of windows summed up (Col2Im), maxima back at their places (MaxUnpool)."""

from app.kernels.cpu.extrema import like


def columns_to_image(x, y, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw, begin, end):
    """y[plane] = the sum of the windows of a plane. Units are planes.

    x: T[planes, kd * kh * kw, od, oh, ow]; y: T[planes, d, h, w]. Along each axis tap t of window o lies at
    o * stride - padding + t * dilation; what lies outside is dropped.
    """
    for plane in range(begin, end):
        base = plane * d * h * w
        for i in range(d * h * w):
            y[base + i] = like(y[base], 0)
        for tap in range(kd * kh * kw):
            z, row, column = tap // (kh * kw), tap // kw % kh, tap % kw
            first = column * dw - pw
            low = max(-(first // sw), 0)
            high = min((w - 1 - first) // sw + 1, ow)
            for a in range(od):
                depth = a * sd - pd + z * dd
                if depth < 0 or depth >= d:
                    continue
                for b in range(oh):
                    line = b * sh - ph + row * dh
                    if line < 0 or line >= h:
                        continue
                    source = (((plane * kd * kh * kw + tap) * od + a) * oh + b) * ow
                    target = base + (depth * h + line) * w + first
                    if sw == 1:
                        for c in range(low, high):
                            y[target + c] += x[source + c]
                    else:
                        for c in range(low, high):
                            y[target + c * sw] += x[source + c]


CHUNK = 1024  # places that are looked through before y is cleared up to the last of them


def unpool(x, places, y, table, rank, count, whole, total, begin, end):
    """y[places[i]] = x[i] in order; y: T[total] is zero elsewhere. One unit: a place may lie in any plane.

    x: T[count]; places: int64[count], in a tensor of `whole` elements whose axes are `table: int64[rank, 2]`
    rows (size, stride of y), none where it is y itself. A place outside is dropped. What is cleared is
    written to while it lies in a cache, as places mostly ascend.
    """
    for _ in range(begin, end):
        done = 0
        for low in range(0, count, CHUNK):
            high = min(low + CHUNK, count)
            first, last = 0, -1
            for i in range(low, high):
                first = min(first, places[i])
                last = max(last, places[i])
            clear = min(last + 1, total) if rank == 0 else total
            for i in range(done, clear):
                y[i] = like(y[0], 0)
            done = max(done, clear)
            if rank == 0 and first >= 0 and last < whole:
                for i in range(low, high):
                    y[places[i]] = x[i]
                continue
            for i in range(low, high):
                place = places[i]
                if place < 0 or place >= whole:
                    continue
                target = place
                if rank > 0:
                    target = 0
                    for axis in range(rank - 1, -1, -1):
                        target += place % table[2 * axis] * table[2 * axis + 1]
                        place = place // table[2 * axis]
                y[target] = x[i]
        for i in range(done, total):
            y[i] = like(y[0], 0)
