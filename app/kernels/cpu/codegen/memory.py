"""Elements of 16 bits in memory: float32 as soon as they are loaded, rounded as they are stored.

A kernel takes an address of float16 or bfloat16 where it takes one of float32, and computes the same: the
type of the pointer alone says what a load and a store convert (x86: vcvtph2ps, vcvtps2ph; shifts for
bfloat16).
"""

import operator
from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

I16, I32 = ll.IntType(16), ll.IntType(32)


class BfloatType(ll.Type):
    """LLVM's bfloat, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BfloatType)

    def __hash__(self) -> int:
        return hash(BfloatType)


HALVES: dict[str, ll.Type] = {"float16": ll.HalfType(), "bfloat16": BfloatType()}


class HalfPointer(types.Type):
    """Address of elements of 16 bits, which are of type `dtype` in registers."""

    def __init__(self, element: str) -> None:
        self.element = element
        self.dtype = types.float32
        super().__init__(name=f"{element}*")


@register_model(HalfPointer)
class _HalfPointerModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: HalfPointer) -> None:
        super().__init__(manager, kind, HALVES[kind.element].as_pointer())


_POINTERS = {name: HalfPointer(name) for name in HALVES}


def pointer(element: str) -> types.Type:
    """The type of an address of such elements, which NumPy's name tells."""
    return _POINTERS.get(element) or types.CPointer(getattr(types, element))


def is_half(address: Any) -> bool:
    """True if the elements at an LLVM address have 16 bits and are converted."""
    return isinstance(address.type.pointee, ll.HalfType | BfloatType)


def bits_address(builder: Any, address: Any, lanes: int = 0) -> Any:
    """The same address, of integers of 16 bits, or of vectors of them."""
    return builder.bitcast(address, (ll.VectorType(I16, lanes) if lanes else I16).as_pointer())


def widened(builder: Any, bits: Any, address: Any) -> Any:
    """The float32 that bits loaded from an address stand for, one or a vector."""
    if isinstance(address.type.pointee, ll.HalfType):
        return builder.fpext(
            builder.bitcast(bits, _like(bits.type, ll.HalfType())), _like(bits.type, ll.FloatType())
        )
    wide = builder.zext(bits, _like(bits.type, I32))
    return builder.bitcast(builder.shl(wide, _all(wide.type, 16)), _like(bits.type, ll.FloatType()))


def narrowed(builder: Any, x: Any, address: Any) -> Any:
    """The bits of the nearest elements to float32, the even one of two, one or a vector."""
    kind = _like(x.type, I16)
    if isinstance(address.type.pointee, ll.HalfType):
        return builder.bitcast(builder.fptrunc(x, _like(x.type, ll.HalfType())), kind)
    bits = builder.bitcast(x, _like(x.type, I32))
    odd = builder.and_(builder.lshr(bits, _all(bits.type, 16)), _all(bits.type, 1))
    rounded = builder.add(bits, builder.add(odd, _all(bits.type, 0x7FFF)))
    quiet = builder.or_(bits, _all(bits.type, 0x400000))  # a NaN must not round to infinity
    nan = builder.fcmp_unordered("uno", x, x)
    return builder.trunc(builder.lshr(builder.select(nan, quiet, rounded), _all(bits.type, 16)), kind)


def _like(kind: Any, element: Any) -> Any:
    return ll.VectorType(element, kind.count) if isinstance(kind, ll.VectorType) else element


def _all(kind: Any, n: int) -> Any:
    return ll.Constant(kind, [n] * kind.count if isinstance(kind, ll.VectorType) else n)


def load(builder: Any, address: Any, lanes: int = 0) -> Any:
    """The element at an address of halves as float32, or a vector of them."""
    return widened(builder, builder.load(bits_address(builder, address, lanes), align=2), address)


def store(builder: Any, value: Any, address: Any) -> None:
    """A float32, or a vector of them, to an address of halves."""
    lanes = value.type.count if isinstance(value.type, ll.VectorType) else 0
    builder.store(narrowed(builder, value, address), bits_address(builder, address, lanes), align=2)


def _is_element(args: Any) -> bool:
    return isinstance(args[0], HalfPointer) and isinstance(args[1], types.Integer)


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        return signature(types.float32, args[0], types.intp) if _is_element(args) else None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        return signature(types.none, args[0], types.intp, types.float32) if _is_element(args) else None


@lower_builtin(operator.getitem, HalfPointer, types.intp)
def _element(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
    return load(builder, builder.gep(values[0], [values[1]]))


@lower_builtin(operator.setitem, HalfPointer, types.intp, types.float32)
def _set_element(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
    store(builder, values[2], builder.gep(values[0], [values[1]]))
    return context.get_dummy_value()
