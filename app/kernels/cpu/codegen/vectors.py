"""Vectors as values in kernels: loads, stores and arithmetic on a fixed number of lanes.

LLVM turns a plain loop into vectors in steps of lanes times unroll (32 float32) and leaves the
rest to single elements, which is most of a row of 28. With vectors as values a kernel chooses its
own steps. Operators, `abs`, `math.sqrt`, `extrema.maximum` and the functions of `intrinsics` and `vectormath`
work on them as on numbers; a number beside a vector stands in all lanes.
"""

import math
import operator

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_cast
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from app.kernels.cpu.codegen import memory


class Vector(types.Type):
    """`lanes` elements of type `dtype` in registers."""

    def __init__(self, dtype, lanes):
        self.dtype = dtype
        self.lanes = lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")

    @property
    def bitwidth(self):
        """Bits of an element."""
        return self.dtype.bitwidth

    def can_convert_from(self, _typing, other):
        """A number of the type of the elements becomes a vector of it."""
        return Conversion.promote if other == self.dtype else None


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        element = manager.lookup(kind.dtype).get_value_type()
        super().__init__(manager, kind, ll.VectorType(element, kind.lanes))


def common(*kinds):
    """The type of an operation on numbers and vectors: the vector's, if one is among them."""
    return next((kind for kind in kinds if isinstance(kind, Vector)), kinds[0])


def filled(kind, number):
    """A constant of an LLVM type, the number in all lanes."""
    return ll.Constant(kind, [number] * kind.count if isinstance(kind, ll.VectorType) else number)


def called(builder, name, values, flags=()):
    """Call LLVM's intrinsic function `name`, of values of one type, numbers or vectors, to the same type."""
    kind = values[0].type
    lanes, element = (f"v{kind.count}", kind.element) if isinstance(kind, ll.VectorType) else ("", kind)
    function = cgutils.get_or_insert_function(
        builder.module,
        ll.FunctionType(kind, [kind] * len(values)),
        f"llvm.{name}.{lanes}f{64 if isinstance(element, ll.DoubleType) else 32}",
    )
    return builder.call(function, values, fastmath=flags)


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
def load_like(_context, pointer, index, vector):
    """As many elements pointer[index], pointer[index + 1] ... as a vector has."""

    def generate(context, builder, _signature, values):
        if memory.is_half(values[0]):
            return memory.load(builder, builder.gep(values[0], [values[1]]), vector.lanes)
        address = _address(context, builder, values[0], values[1], vector)
        return builder.load(address, align=pointer.dtype.bitwidth // 8)

    return vector(pointer, types.int64, vector), generate


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


def _first_lanes(builder, count, lanes):
    """Mask of the first `count` lanes."""
    kind = ll.VectorType(ll.IntType(32), lanes)
    every = _splatted(builder, builder.trunc(count, kind.element), lanes)
    return builder.icmp_signed("<", ll.Constant(kind, list(range(lanes))), every)


def _masked(builder, name, result, vector, values):
    """Call LLVM's masked load or store of a vector; `values` lie around the alignment."""
    kind = ll.FunctionType(result, [v.type for v in values])
    element = vector.element.intrinsic_name  # f32, f64, i16
    function = cgutils.get_or_insert_function(
        builder.module, kind, f"llvm.masked.{name}.v{vector.count}{element}.p0"
    )
    return builder.call(function, values)


@intrinsic
def load_first(_context, pointer, index, count, rest):
    """As `load`, of the first `count` elements; the other lanes are those of the vector `rest`.

    Nothing is read beyond.
    """

    def generate(context, builder, signature, values):
        mask = _first_lanes(builder, values[2], rest.lanes)
        if memory.is_half(values[0]):
            address = memory.bits_address(builder, builder.gep(values[0], [values[1]]), rest.lanes)
            halves = address.type.pointee
            align, nothing = ll.Constant(ll.IntType(32), 2), ll.Constant(halves, None)
            bits = _masked(builder, "load", halves, halves, [address, align, mask, nothing])
            return builder.select(mask, memory.widened(builder, bits, values[0]), values[3])
        address = _address(context, builder, values[0], values[1], rest)
        align = ll.Constant(ll.IntType(32), rest.bitwidth // 8)
        vector = values[3].type
        return _masked(builder, "load", vector, vector, [address, align, mask, values[3]])

    return rest(pointer, types.int64, types.int64, rest), generate


@intrinsic
def store_first(_context, pointer, index, count, vector):
    """As `store`, of the first `count` lanes."""

    def generate(context, builder, _signature, values):
        mask, stored, size = _first_lanes(builder, values[2], vector.lanes), values[3], vector.bitwidth // 8
        if memory.is_half(values[0]):
            address = memory.bits_address(builder, builder.gep(values[0], [values[1]]), vector.lanes)
            stored, size = memory.narrowed(builder, stored, values[0]), 2
        else:
            address = _address(context, builder, values[0], values[1], vector)
        align = ll.Constant(ll.IntType(32), size)
        _masked(builder, "store", ll.VoidType(), stored.type, [stored, address, align, mask])
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.int64, vector), generate


def _shuffled(builder, a, b, lanes):
    mask = ll.Constant(ll.VectorType(ll.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(a, b, mask)


def _splatted(builder, number, lanes):
    undefined = ll.Constant(ll.VectorType(number.type, lanes), ll.Undefined)
    first = builder.insert_element(undefined, number, ll.Constant(ll.IntType(32), 0))
    return _shuffled(builder, first, undefined, [0] * lanes)


@intrinsic(prefer_literal=True)
def splat(_context, number, lanes):
    """A number in all lanes; lanes is a literal."""
    kind = Vector(types.unliteral(number), lanes.literal_value)

    def generate(_context, builder, _signature, values):
        return _splatted(builder, values[0], kind.lanes)

    return kind(kind.dtype, lanes), generate


@lower_cast(types.Float, Vector)
def _number_to_vector(_context, builder, _kind, vector, value):
    return _splatted(builder, value, vector.lanes)


@intrinsic
def lower_half(_context, a):
    """The first half of the lanes."""

    def generate(_context, builder, signature, values):
        return _shuffled(builder, values[0], values[0], list(range(signature.return_type.lanes)))

    return Vector(a.dtype, a.lanes // 2)(a), generate


@intrinsic
def upper_half(_context, a):
    """The second half of the lanes."""

    def generate(_context, builder, signature, values):
        half = signature.return_type.lanes
        return _shuffled(builder, values[0], values[0], list(range(half, 2 * half)))

    return Vector(a.dtype, a.lanes // 2)(a), generate


@intrinsic
def both(_context, a, b):
    """The lanes of a, then those of b, which has as many."""

    def generate(_context, builder, _signature, values):
        return _shuffled(builder, *values, list(range(2 * a.lanes)))

    return Vector(a.dtype, 2 * a.lanes)(a, a), generate


@intrinsic
def only_lane(_context, a):
    """The number that a vector of one lane holds."""

    def generate(_context, builder, _signature, values):
        return builder.extract_element(values[0], ll.Constant(ll.IntType(32), 0))

    return a.dtype(a), generate


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


@intrinsic
def alternating(_context, a, b):
    """The lanes of a and b in turn: a[0], b[0], a[1] ..."""

    def generate(_context, builder, _signature, values):
        order = [i // 2 + i % 2 * a.lanes for i in range(2 * a.lanes)]
        return _shuffled(builder, *values, order)

    return Vector(a.dtype, 2 * a.lanes)(a, a), generate


def _matches(kind, args):
    """True for vectors of one kind, and for numbers of the type of their elements beside them."""
    return isinstance(kind, Vector) and all(a in (kind, kind.dtype) for a in args)


def _operation(function, operands, emit, *, takes=types.Number, gives=None):
    """Define a function on vectors; LLVM's instruction for it is made in place.

    `overload` would compile a function of numba's for each number of lanes: half of those of a softmax.

    Args:
        function: the operator, or function of Python.
        operands: how many it has.
        emit: function (builder, *values) to the result.
        takes: kind of the elements that it is defined for.
        gives: type of the elements of its result; None for that of the operands.
    """

    @infer_global(function)
    class _Typed(AbstractTemplate):
        def generic(self, args, _kws):
            kind = common(*args)
            if not _matches(kind, args) or not isinstance(kind.dtype, takes):
                return None
            result = kind if gives is None else Vector(gives, kind.lanes)
            return signature(result, *[kind] * len(args))

    @lower_builtin(function, *[Vector] * operands)
    def _lowered(_context, builder, _signature, values):
        return emit(builder, *values)


def _by_element(floating, integral):
    """Function that makes one of two instructions, by the type of the elements."""

    def emit(builder, a, b):
        is_float = isinstance(a.type.element, ll.FloatType | ll.DoubleType)
        return getattr(builder, floating if is_float else integral)(a, b)

    return emit


def _comparison(sign):
    return lambda builder, a, b: builder.fcmp_ordered(sign, a, b)


_operation(operator.add, 2, _by_element("fadd", "add"))
_operation(operator.sub, 2, _by_element("fsub", "sub"))
_operation(operator.mul, 2, _by_element("fmul", "mul"))
_operation(operator.truediv, 2, lambda builder, a, b: builder.fdiv(a, b), takes=types.Float)
_operation(operator.lt, 2, _comparison("<"), takes=types.Float, gives=types.boolean)
_operation(operator.gt, 2, _comparison(">"), takes=types.Float, gives=types.boolean)
_operation(operator.eq, 2, _comparison("=="), takes=types.Float, gives=types.boolean)
_operation(abs, 1, lambda builder, a: called(builder, "fabs", [a]), takes=types.Float)
_operation(math.sqrt, 1, lambda builder, a: called(builder, "sqrt", [a]), takes=types.Float)
