"""Regions of shapes, as requests spell them."""

import re
from typing import Any

import pytest

from app.engine.types.errors import InputError
from app.engine.types.regions.region import Region, Symbol, bound, region_of, weighted_points


def test_bounds_and_divisors_are_read() -> None:
    region = region_of({"ids": ["N<=8", "L<=512"], "x": [1, 3, "H:32..640%32", "W:30..640 % 32"]})
    assert region is not None
    assert region.symbols == {
        "N": Symbol("N", 1, 8),
        "L": Symbol("L", 1, 512),
        "H": Symbol("H", 32, 640, 32),
        "W": Symbol("W", 32, 640, 32),
    }
    assert region.inputs == {"ids": ("N", "L"), "x": (1, 3, "H", "W")}
    assert region.count == 8 * 512 * 20 * 20
    assert region.largest == {"N": 8, "L": 512, "H": 640, "W": 640}
    small = region_of({"x": ["N<=3", "H:8..24%8"]})
    assert small is not None
    assert [small.index(p) for p in small.points()] == list(range(9))


def test_a_name_alone_is_the_same_size() -> None:
    region = region_of({"ids": ["N<=8", "L"], "mask": ["N", "L:1..64%2"]})
    assert region is not None
    assert region.shapes({"N": 2, "L": 10}) == {"ids": (2, 10), "mask": (2, 10)}
    assert region.point({"ids": (2, 10), "mask": (2, 10)}) == {"N": 2, "L": 10}
    assert region.point({"ids": (2, 10), "mask": (2, 12)}) is None
    assert region.point({"ids": (2, 11), "mask": (2, 11)}) is None
    assert region.point({"ids": (9, 10), "mask": (9, 10)}) is None
    assert region.point({"ids": (2, 10)}) is None
    assert "'mask' takes [N:1..8, L:2..64%2], found [2, 12]" in region.rejection(
        {"ids": (2, 10), "mask": (2, 12)}
    )
    assert region.rejection({"ids": (2, 10), "mask": (2, 10)}) == ""


def test_a_dimension_may_be_a_sum_of_symbols() -> None:
    shapes, region = bound({"mask": ["B", "P + S"], "y": ["2*B+P-1"], "past": ["B<=2", "P:4..60%4", "S<=3"]})
    assert region is not None
    assert shapes == {"mask": (2, 63), "y": (63,), "past": (2, 60, 3)}
    point = {"B": 1, "P": 8, "S": 2}
    assert region.shapes(point) == {"mask": (1, 10), "y": (9,), "past": (1, 8, 2)}
    assert region.point(region.shapes(point)) == point
    assert region.point({**region.shapes(point), "mask": (1, 11)}) is None
    assert region.point({"mask": (1, 11), "y": (10,), "past": (1, 9, 2)}) is None
    assert "'mask' takes [B:1..2, P+S], found [1, 11]" in region.rejection(
        {"mask": (1, 11), "y": (9,), "past": (1, 8, 2)}
    )


def test_numbers_alone_are_no_region() -> None:
    assert bound({"x": [1, 3, 8, 8]}) == ({"x": (1, 3, 8, 8)}, None)


def test_the_largest_shape_stands_for_a_region() -> None:
    shapes, region = bound({"x": [1, "H:32..100%32"], "y": [4]})
    assert shapes == {"x": (1, 96), "y": (4,)}
    assert region is not None


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        (["N"], "symbol 'N' has no bounds"),
        (["8..16"], "dimension '8..16' is no size"),
        (["P+1"], "symbol 'P' has no bounds"),
        (["P<=4", "P+"], "dimension 'P+' is no size"),
        (["P<=4", "P-1"], "dimension 'P-1' is 0 where P is 1; expected at least 1"),
        (["P<=4", "9-2*P", "8-2*P"], "dimension '8-2*P' is 0 where P is 4"),
        (["N:9..8"], "has no size"),
        (["N:33..40%32"], "no multiple of 32 is in 33..40"),
        (["N<=8%0"], "has no size"),
        (["N%8"], "a divisor without bounds"),
        (["N<=8", "N<=9"], "is N:1..9 here and N:1..8 elsewhere"),
        (["N<=0"], "has no size"),
        (["-1"], "dimension '-1' is no size"),
    ],
)
def test_errors_name_the_dimension(dims: list[int | str], told: str) -> None:
    with pytest.raises(InputError, match="input 'x'") as error:
        region_of({"x": dims})
    assert told in error.value.message
    assert error.value.pointer == "/input_shapes/x"


def test_samples_have_every_corner_and_points_of_the_region_only() -> None:
    region = region_of({"x": ["N<=3", "L:8..512%8", "H:5..5"]})
    assert region is not None
    samples = region.samples()
    assert samples[0] == region.largest
    assert all(region.point(region.shapes(p)) == p for p in samples)
    assert len({tuple(p.items()) for p in samples}) == len(samples)
    for n in (1, 3):
        for length in (8, 512):
            assert {"N": n, "L": length, "H": 5} in samples


def test_points_are_numbered_and_a_huge_region_is_not_enumerated() -> None:
    region = Region({"x": ("N", "L")}, {"N": Symbol("N", 2, 6, 2), "L": Symbol("L", 1, 4)})
    points = [*region.points()]
    assert len(points) == region.count == 12
    assert points[0] == region.largest
    assert len({tuple(p.items()) for p in points}) == 12
    assert [region.index(p) for p in points] == [*range(12)]
    huge = Region({"x": ("N",)}, {"N": Symbol("N", 1, 2**40)})
    assert next(huge.points()) == {"N": 2**40}
    assert huge.at(huge.count - 1) == {"N": 1}


def test_a_cut_divides_a_region() -> None:
    region = region_of({"x": ["N<=4", "H:8..64%8"]})
    assert region is not None
    for name, sizes in (("N", range(2, 5)), ("H", range(16, 65, 8))):
        for size in sizes:
            low, high = region.cut(name, size)
            assert not low.overlaps(high)
            assert low.overlaps(region)
            assert high.overlaps(low) is False
            for point in region.points():
                assert (low.contains(point), high.contains(point)) == (
                    point[name] < size,
                    point[name] >= size,
                )


def test_corners_and_grids_are_points_of_the_region_with_its_ends() -> None:
    for spelled in (["N<=4", "H:8..64%8"], ["N<=1", "H:8..8"], ["A<=3", "B<=4", "C<=5", "D:2..6%2"]):
        region = region_of({"x": spelled})
        assert region is not None
        least = {name: s.low for name, s in region.symbols.items()}
        for points in (region.corners(), region.grid(3)):
            keys = [tuple(p.values()) for p in points]
            assert len(set(keys)) == len(keys)
            assert points[0] == region.largest
            assert least in points
            assert all(map(region.contains, points))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"sizes": {"N": 5}, "weight": 1}], "N=5 is no shape of N:1..4"),
        ([{"sizes": {}, "weight": 1}], "no size is no shape of N:1..4"),
        ([{"sizes": {"N": 2, "M": 1}, "weight": 1}], "N=2, M=1 is no shape of N:1..4"),
        ([{"sizes": {"N": 2}, "weight": 0}], "has weight 0; expected a number above 0"),
        ([{"sizes": {"N": 2}, "weight": 1}, {"sizes": {"N": 2}, "weight": 2}], "N=2 comes twice"),
    ],
)
def test_a_wrong_histogram_is_refused(entries: list[dict[str, Any]], message: str) -> None:
    region = region_of({"x": ["N<=4"]})
    with pytest.raises(InputError, match=re.escape(message)):
        weighted_points(region, entries)
    with pytest.raises(InputError, match="a shape histogram needs symbols"):
        weighted_points(None, entries)
