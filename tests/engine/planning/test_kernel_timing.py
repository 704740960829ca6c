"""Memory of kernels that are timed is taken again, never by two at once."""

from app.engine.planning.kernel_timing import Places


def test_places_are_taken_again_once_they_are_free() -> None:
    places = Places()
    small, large = places.take(1000), places.take(5000)
    small[:], large[:] = 1, 2
    assert (small.nbytes, large.nbytes) == (1000, 5000)
    assert (small == 1).all()
    places.free()
    again, more = places.take(900), places.take(900)
    assert again.ctypes.data == small.ctypes.data
    assert more.ctypes.data == large.ctypes.data
    places.free()
    assert places.take(5000).ctypes.data == large.ctypes.data


def test_a_larger_place_takes_the_room_of_one_that_is_too_small() -> None:
    places = Places()
    for nbytes in (1000, 2000, 4000):
        places.take(nbytes)
        places.free()
    assert [place.nbytes for place in places._free] == [4000]
