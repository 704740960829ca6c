"""Vectors as values in kernels: loads, stores and arithmetic on a fixed number of lanes.

LLVM turns a plain loop into vectors in steps of lanes times unroll (32 float32) and leaves the
rest to single elements, which is most of a row of 28. With vectors as values a kernel chooses its
own steps. `+`, `*`, `/`, `abs`, `math.sqrt` and `extrema.maximum` work on them as on numbers.
"""

import math
import operator

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from app.kernels.cpu.codegen import memory


class Vector(types.Type):
    """`lanes` elements of type `dtype` in registers."""

    def __init__(self, dtype, lanes):
        self.dtype = dtype
        self.lanes = lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        element = manager.lookup(kind.dtype).get_data_type()
        super().__init__(manager, kind, ll.VectorType(element, kind.lanes))


def _address(context, builder, pointer, index, kind):
    vector = context.get_value_type(kind)
    return builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())


@intrinsic(prefer_literal=True)
def load(_context, pointer, index, lanes):
    """The elements pointer[index : index + lanes]; lanes is a literal."""
    kind = Vector(pointer.dtype, lanes.literal_value)

    def generate(context, builder, _signature, values):
        if memory.is_half(values[0]):
            return memory.load(builder, builder.gep(values[0], [values[1]]), kind.lanes)
        address = _address(context, builder, values[0], values[1], kind)
        return builder.load(address, align=pointer.dtype.bitwidth // 8)

    return kind(pointer, types.int64, lanes), generate


@intrinsic
def store(_context, pointer, index, vector):
    """Write a vector to pointer[index : index + lanes]."""

    def generate(context, builder, _signature, values):
        if memory.is_half(values[0]):
            memory.store(builder, values[2], builder.gep(values[0], [values[1]]))
            return context.get_dummy_value()
        address = _address(context, builder, values[0], values[1], vector)
        builder.store(values[2], address, align=pointer.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, vector), generate


def _shuffled(builder, a, b, lanes):
    mask = ll.Constant(ll.VectorType(ll.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(a, b, mask)


@intrinsic(prefer_literal=True)
def splat(_context, number, lanes):
    """A number in all lanes; lanes is a literal."""
    kind = Vector(types.unliteral(number), lanes.literal_value)

    def generate(context, builder, _signature, values):
        undefined = ll.Constant(context.get_value_type(kind), ll.Undefined)
        first = builder.insert_element(undefined, values[0], ll.Constant(ll.IntType(32), 0))
        return _shuffled(builder, first, undefined, [0] * kind.lanes)

    return kind(kind.dtype, lanes), generate


@intrinsic
def evens(_context, a, b):
    """Elements 0, 2, 4 ... of a and b, one after the other."""

    def generate(_context, builder, signature, values):
        return _shuffled(builder, *values, list(range(0, 2 * signature.return_type.lanes, 2)))

    return a(a, b), generate


@intrinsic
def odds(_context, a, b):
    """Elements 1, 3, 5 ... of a and b, one after the other."""

    def generate(_context, builder, signature, values):
        return _shuffled(builder, *values, list(range(1, 2 * signature.return_type.lanes, 2)))

    return a(a, b), generate


def _is_float(kind):
    return isinstance(kind.dtype, types.Float)


def _binary(floating, integral):
    @intrinsic
    def apply(_context, a, b):
        def generate(_context, builder, signature, values):
            name = floating if _is_float(signature.return_type) else integral
            return getattr(builder, name)(*values)

        return a(a, b), generate

    return apply


def _unary(name):
    @intrinsic
    def apply(_context, a):
        def generate(_context, builder, signature, values):
            kind = signature.return_type
            vector = values[0].type
            function = cgutils.get_or_insert_function(
                builder.module,
                ll.FunctionType(vector, [vector]),
                f"llvm.{name}.v{kind.lanes}f{kind.dtype.bitwidth}",
            )
            return builder.call(function, values)

        return a(a), generate

    return apply


_add = _binary("fadd", "add")
_subtract = _binary("fsub", "sub")
_multiply = _binary("fmul", "mul")
_divide = _binary("fdiv", "sdiv")
_absolute = _unary("fabs")
_square_root = _unary("sqrt")


@overload(operator.add)
def _overload_add(a, b):
    return (lambda a, b: _add(a, b)) if isinstance(a, Vector) and a == b else None


@overload(operator.sub)
def _overload_subtract(a, b):
    return (lambda a, b: _subtract(a, b)) if isinstance(a, Vector) and a == b else None


@overload(operator.mul)
def _overload_multiply(a, b):
    return (lambda a, b: _multiply(a, b)) if isinstance(a, Vector) and a == b else None


@overload(operator.truediv)
def _overload_divide(a, b):
    return (lambda a, b: _divide(a, b)) if isinstance(a, Vector) and a == b and _is_float(a) else None


@overload(abs)
def _overload_abs(a):
    return (lambda a: _absolute(a)) if isinstance(a, Vector) and _is_float(a) else None


@overload(math.sqrt)
def _overload_sqrt(a):
    return (lambda a: _square_root(a)) if isinstance(a, Vector) and _is_float(a) else None
