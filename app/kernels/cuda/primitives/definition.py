"""Definition of a kernel's names: numba intrinsics from LLVM IR or a text of PTX."""

import inspect
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

I16, I32, I64, F32, VOID = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.VoidType()

_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
SCALARS = {name: getattr(types, name) for name in _NUMBERS}
SCALARS["bool"] = types.uint8  # a byte that holds 0 or 1

# Letters of the specifications below: p a pointer, n an integer literal, digits a tuple of that many.
_KINDS = {"u": types.uint32, "i": types.int32, "f": types.float32, "h": types.uint16, "v": types.void}
LLVM = {"u": I32, "i": I32, "f": F32, "h": I16, "v": VOID}
_CONSTRAINTS = {"u": "r", "i": "r", "f": "f", "h": "h"}

# Functions of the toolkit's library.
_MATH = (
    *("exp", "log", "erf", "tanh", "sqrt", "sin", "cos", "pow", "fmod", "log1p", "expm1"),
    *("atan", "asin", "acos", "sinh", "cosh", "tan"),
)
NAMES: dict[str, Any] = {
    **{name: kind for name, kind in SCALARS.items() if name != "bool"},
    **{name: getattr(math, name) for name in _MATH},
    "device": cuda.jit(device=True),  # decorates functions that a kernel calls
    **{function.__name__: function for function in (min, max, range, abs)},
}


def type_of(name: str) -> Any:
    """Type in numba of `float32*`, `uint32` and the like."""
    return types.CPointer(SCALARS[name[:-1]]) if name.endswith("*") else SCALARS[name]


def _type(spec: str) -> Any:
    return _KINDS[spec] if len(spec) == 1 else types.UniTuple(_KINDS[spec[0]], int(spec[1:]))


def primitive(name: str, returns: str, parameters: str, lower: Callable[..., Any]) -> None:
    """Define NAMES[name]; `lower(context, builder, parameter types, values)` gives a value, values or None.

    `parameters` and `returns` are words of `_KINDS`, such as "p u f4": a pointer, a number, a tuple.
    """
    words = parameters.split()

    def define(_context: Any, *given: Any) -> Any:
        expected = []
        for word, argument in zip(words, given, strict=True):
            if word == "n" and not isinstance(argument, types.IntegerLiteral):
                return None
            expected.append(argument if word in "pn" else _type(word))
        result = _type(returns) if not returns.startswith("p") else types.CPointer(SCALARS[returns[2:]])

        def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:
            value = lower(context, builder, sig.args, values)
            if returns == "v":
                return context.get_dummy_value()
            if isinstance(value, list):
                return context.make_tuple(builder, sig.return_type, value)
            return value

        return signature(result, *expected), generate

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    define.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # numba reads the arity there
        [inspect.Parameter(x, kind) for x in ("typingctx", *(f"a{i}" for i in range(len(words))))]
    )
    define.__name__ = define.__qualname__ = name
    NAMES[name] = intrinsic(define)


def element_address(builder: Any, kind: Any, pointer: Any, index: Any) -> Any:
    """The generic address of an element."""
    return builder.gep(pointer, [builder.zext(index, I64)])


def shared_address(builder: Any, kind: Any, pointer: Any, index: Any) -> Any:
    """The same in the window of shared memory, 32 bits wide."""
    base = builder.ptrtoint(builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, 3)), I32)
    return builder.add(base, builder.mul(index, ir.Constant(I32, kind.dtype.bitwidth // 8)))


def call(builder: Any, returns: Any, text: str, constraints: str, values: Any, *, effect: bool) -> Any:
    function = ir.FunctionType(returns, [value.type for value in values])
    assembly = ir.InlineAsm(function, text, constraints, side_effect=effect)
    return builder.call(assembly, values, attrs=("convergent",) if effect else ())


def assembly(
    name: str, returns: str, parameters: str, text: str, *, space: str = "", effect: bool = False
) -> None:
    """A primitive that is one PTX text; $0.. are results, then arguments, tuples spread out.

    `space`: for every pointer of `parameters`, g or s; the index that follows is folded into it. Texts that
    access memory have an `effect`.
    """
    effect = effect or bool(space)
    width = 0 if returns == "v" else int(returns[1:] or 1)

    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        operands, spaces = [], iter(space)
        constraints = [f"={_CONSTRAINTS[returns[0]]}"] * width if width else []
        words = parameters.split()
        i = 0
        while i < len(words):
            if words[i] == "p":
                if next(spaces) == "s":
                    operands.append(shared_address(builder, kinds[i], values[i], values[i + 1]))
                    constraints.append("r")
                else:
                    at = element_address(builder, kinds[i], values[i], values[i + 1])
                    operands.append(builder.ptrtoint(at, I64))
                    constraints.append("l")
                i += 2
                continue
            if words[i] == "n":
                operands.append(ir.Constant(I32, kinds[i].literal_value))
                constraints.append("n")
            elif len(words[i]) > 1:
                count = int(words[i][1:])
                operands += [builder.extract_value(values[i], j) for j in range(count)]
                constraints += [_CONSTRAINTS[words[i][0]]] * count
            else:
                operands.append(values[i])
                constraints.append(_CONSTRAINTS[words[i]])
            i += 1
        if effect:
            constraints.append("~{memory}")
        kind = LLVM[returns[0]] if width < 2 else ir.LiteralStructType([LLVM[returns[0]]] * width)
        value = call(builder, kind, text, ",".join(constraints), operands, effect=effect)
        return [builder.extract_value(value, j) for j in range(width)] if width > 1 else value

    primitive(name, returns, parameters, lower)
