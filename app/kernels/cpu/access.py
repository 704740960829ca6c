"""Loads and stores for kernels that may work in place.

LLVM guards a vectorized loop over two addresses by a check that they are apart, and falls back to
single elements where they are not: in place such a loop is 2 to 5 times slower. `read` and
`write` carry the promise that makes the check unnecessary: every element is read before the
element of the same index is written, in the same iteration, and not read again. LLVM groups what
may overlap, so a loop needs `read` for all that it reads.

Source: LLVM language reference, 'noalias' and 'alias.scope' metadata.
"""

from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen import memory


def _scope(module):
    domain = module.add_metadata(["stowplan in place"])
    return module.add_metadata([module.add_metadata(["read before written", domain])])


@intrinsic
def read(_context, pointer, index):
    """The element pointer[index]."""

    def generate(_context, builder, _signature, values):
        address = builder.gep(values[0], [values[1]])
        half = memory.is_half(address)
        place = memory.bits_address(builder, address) if half else address
        loaded = builder.load(place, align=2 if half else max(pointer.dtype.bitwidth // 8, 1))
        loaded.set_metadata("alias.scope", _scope(builder.module))
        return memory.widened(builder, loaded, address) if half else loaded

    return pointer.dtype(pointer, types.int64), generate


@intrinsic
def write(_context, pointer, index, number):
    """Store a number to pointer[index], in the type of the elements."""

    def generate(context, builder, signature, values):
        value = context.cast(builder, values[2], signature.args[2], pointer.dtype)
        address, align = builder.gep(values[0], [values[1]]), max(pointer.dtype.bitwidth // 8, 1)
        if memory.is_half(address):
            value, align = memory.narrowed(builder, value, address), 2
            address = memory.bits_address(builder, address)
        stored = builder.store(value, address, align=align)
        stored.set_metadata("noalias", _scope(builder.module))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, number), generate
