"""Resampling along one axis: y[o, j, i] = Σ_t weight[j, t] · x[o, place[j, t], i].

Linear, cubic and antialiased Resize are a chain of these. place: int64[n_out, taps], weight:
T[n_out, taps]; a row whose first place is negative lies outside and takes the fill value.
"""


def resample(x, y, place, weight, fill, n_in, n_out, inner, taps, begin, end):
    """x: T[outer, n_in, inner]; units are rows o · n_out + j."""
    for unit in range(begin, end):
        o = unit // n_out
        j = unit - o * n_out
        target = unit * inner
        first = place[j * taps]
        source = (o * n_in + first) * inner
        w0 = weight[j * taps]
        if first < 0:
            value = fill[0]
            for i in range(inner):
                y[target + i] = value
        elif taps == 1:
            for i in range(inner):
                y[target + i] = w0 * x[source + i]
        else:
            second = (o * n_in + place[j * taps + 1]) * inner
            w1 = weight[j * taps + 1]
            for i in range(inner):
                y[target + i] = w0 * x[source + i] + w1 * x[second + i]
            for t in range(2, taps):
                source = (o * n_in + place[j * taps + t]) * inner
                w0 = weight[j * taps + t]
                for i in range(inner):
                    y[target + i] += w0 * x[source + i]


def resample_rows(x, y, place, weight, fill, n_in, n_out, taps, begin, end):
    """The innermost axis: x: T[outer, n_in]; units are rows o."""
    for o in range(begin, end):
        source = o * n_in
        target = o * n_out
        for j in range(n_out):
            if place[j * taps] < 0:
                y[target + j] = fill[0]
            else:
                total = weight[j * taps] * x[source + place[j * taps]]
                for t in range(1, taps):
                    total += weight[j * taps + t] * x[source + place[j * taps + t]]
                y[target + j] = total
