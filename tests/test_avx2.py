"""A machine without later extensions than AVX2, as `python -m tests.avx2` pretends it."""

from tests.avx2 import cpuinfo, features

TEXT = """processor\t: 0
model name\t: AMD EPYC
flags\t\t: fma avx2 avx512f avx512_vnni avx_vnni amx_tile gfni bmi2
"""


def test_flags_of_later_extensions_are_left_out() -> None:
    assert cpuinfo(TEXT).splitlines()[2].split() == ["flags", ":", "fma", "avx2", "bmi2"]
    assert cpuinfo(TEXT).splitlines()[:2] == TEXT.splitlines()[:2]


def test_features_of_later_extensions_are_turned_off() -> None:
    text = "+avx2,+avx512f,-avx512vnni,+avxvnni,+amx-int8,+avx10.1,+fma,-avx"
    assert features(text) == "+avx2,-avx512f,-avx512vnni,-avxvnni,-amx-int8,-avx10.1,+fma,-avx"
