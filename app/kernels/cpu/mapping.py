"""A loop over elements that LLVM may run in vectors without asking whether addresses overlap.

Addresses carry no promise about aliasing, so LLVM guards a vector loop with comparisons of all
pairs and runs scalars when a result overwrites an operand, which is what memory planning likes
best. Every iteration reads its elements before it writes them and touches no other iteration's,
and `llvm.loop.parallel_accesses` says just that.
"""

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen.instructions import Distinct

_I64 = ll.IntType(64)


def _parallel(module):
    """An access group, and the metadata of a loop whose accesses in it are independent."""
    group, loop = Distinct(module), Distinct(module)
    name = ll.MetaDataString(module, "llvm.loop.parallel_accesses")
    loop.operands = (loop, module.add_metadata([name, group]))
    return group, loop


@intrinsic
def map_elements(_context, function, first, last, sources, targets, held):
    """targets[k][i] = function(*(s[i] for s in sources), *held)[k] for first <= i < last.

    `sources` and `targets` are tuples of addresses, `held` a tuple of scalars; the function is
    compiled and returns a tuple with an element for each target, of its type. A source may be the
    same address as a target.
    """
    elements = tuple(pointer.dtype for pointer in sources)
    inner = function.get_call_type(_context, (*elements, *held), {})
    if tuple(inner.return_type) != tuple(pointer.dtype for pointer in targets):
        raise TypeError(f"the function returns {inner.return_type}, the targets are {targets}")

    def generate(context, builder, _signature, values):
        _, start, stop, *tuples = values
        reads, writes, fixed = (cgutils.unpack_tuple(builder, t) for t in tuples)
        group, loop = _parallel(builder.module)
        entry = builder.block
        head, body, done = (builder.append_basic_block(n) for n in ("head", "body", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(_I64)
        index.add_incoming(start, entry)
        builder.cbranch(builder.icmp_signed("<", index, stop), body, done)
        builder.position_at_end(body)
        loads = [builder.load(builder.gep(p, [index], inbounds=True)) for p in reads]
        results = context.get_function(function, inner)(builder, [*loads, *fixed])
        stores = [
            builder.store(value, builder.gep(p, [index], inbounds=True))
            for value, p in zip(cgutils.unpack_tuple(builder, results), writes)
        ]
        for access in (*loads, *stores):
            access.set_metadata("llvm.access.group", group)
        index.add_incoming(builder.add(index, ll.Constant(_I64, 1), flags=["nsw"]), builder.block)
        builder.branch(head).set_metadata("llvm.loop", loop)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(function, types.int64, types.int64, sources, targets, held), generate
