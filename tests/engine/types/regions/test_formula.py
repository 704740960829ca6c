"""Formulas of symbols, from samples."""

import pytest

from app.engine.types.regions.formula import Formula, fitted
from app.engine.types.regions.region import Region, region_of


def _region(**symbols: str) -> Region:
    region = region_of({"x": [f"{name}{bounds}" for name, bounds in symbols.items()]})
    assert region is not None
    return region


CASES = {
    "7": lambda n, length: 7,
    "length": lambda n, length: length,
    "12*n*length": lambda n, length: 12 * n * length,
    "3*length + 5": lambda n, length: 3 * length + 5,
    "length - 1": lambda n, length: length - 1,
    "n*(2*length+1)": lambda n, length: n * (2 * length + 1),
    "length*length": lambda n, length: length * length,
    "ceil(length/2)": lambda n, length: -(-length // 2),
    "(length+3)//4": lambda n, length: (length + 3) // 4,
    "(length-3)//8+1": lambda n, length: (length - 3) // 8 + 1,
    "2*length//3": lambda n, length: 2 * length // 3,
}
UNDECIDED = {"(length-3)//8+1"}  # the samples leave several quotients


@pytest.mark.parametrize("case", CASES)
def test_a_formula_holds_at_points_that_it_was_not_made_from(case: str) -> None:
    region = _region(n="<=8", length=":8..512")
    found = fitted(region, region.samples(), [CASES[case](**p) for p in region.samples()])
    assert (found is None) == (case in UNDECIDED)
    if found is None:
        return
    for n in range(1, 9):
        for length in range(8, 513, 7):
            point = {"n": n, "length": length}
            assert found.at(point) == CASES[case](**point), (str(found), point)
            assert eval(str(found), {}, point) == found.at(point)


def test_divisors_make_polynomials_of_images() -> None:
    region = _region(h=":64..960%32", w=":64..960%32")
    found = fitted(region, region.samples(), [(p["h"] // 8) * (p["w"] // 4) for p in region.samples()])
    assert found == Formula({("h", "w"): 1}, 32)
    assert str(found) == "(h*w)//32"
    assert found.is_monotone


def test_what_no_form_has_is_not_found() -> None:
    region = _region(n="<=64")
    assert fitted(region, region.samples(), [p["n"] // 63 for p in region.samples()]) is None
    assert fitted(region, region.samples(), [max(p["n"], 40) for p in region.samples()]) is None


def test_a_formula_that_falls_is_not_monotone() -> None:
    assert not Formula({(): 9, ("n",): -1}).is_monotone
    assert str(Formula({(): 9, ("n",): -1})) == "9 - n"
    assert Formula({(): -9}).is_monotone


def test_what_is_rounded_to_an_alignment_is_a_quotient_in_units() -> None:
    """Where a part of 60 W bytes begins, rounded down to 64: 60 W is no multiple of 64 at every second width."""
    region = _region(w=":48..640%8")
    points = region.samples()
    found = fitted(region, points, [60 * p["w"] // 64 * 64 for p in points])
    assert found is not None
    assert found.unit == 64
    for point in region.points():
        assert found.at(point) == eval(str(found), dict(point)) == 60 * point["w"] // 64 * 64
