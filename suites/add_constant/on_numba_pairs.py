"""Computes `add_constant` on the GPU with Numba in accesses of 16 bytes.

Numba has no vector loads, and what it emits for pairs of float64 (complex128, records, neighbouring elements)
NVVM leaves as two accesses of 8 bytes, for want of a known alignment. An intrinsic can state the alignment.
"""

from __future__ import annotations

from llvmlite import ir
from numba import cuda
from numba.cuda import types
from numba.cuda.extending import intrinsic

from .problem import add_constant


@intrinsic
def add_to_pair(typingctx, source, target, pair, constant):
    """target[2·pair : 2·pair + 2] = source[…] + constant as one load, one vector addition and one store."""
    pair_type = ir.VectorType(ir.DoubleType(), 2)

    def emit(context, builder, signature, arguments):
        def address(position):
            array = context.make_array(signature.args[position])(context, builder, arguments[position])
            return builder.gep(builder.bitcast(array.data, pair_type.as_pointer()), [arguments[2]])

        constants = ir.Constant(pair_type, ir.Undefined)
        for lane in range(2):
            constants = builder.insert_element(constants, arguments[3], ir.Constant(ir.IntType(32), lane))
        values = builder.load(address(0), align=16)
        builder.store(builder.fadd(values, constants), address(1), align=16)
        return context.get_dummy_value()

    return types.void(source, target, types.intp, types.float64), emit


@cuda.jit
def add_striding_pairs(a, out):
    """A grid-stride loop over pairs; the odd element at the end is the first thread's."""
    for pair in range(cuda.grid(1), a.size // 2, cuda.gridsize(1)):
        add_to_pair(a, out, pair, 2.0)
    if a.size % 2 == 1 and cuda.grid(1) == 0:
        out[a.size - 1] = a[a.size - 1] + 2.0


@add_constant.variant("numba", needs_gpu="an intrinsic that emits LLVM IR", block=(128, 256, 512))
def grid_stride_pairs(a, out, stream, block):
    """A flat grid-stride loop in accesses of 16 bytes; at least two pairs a thread, at most 2048 blocks."""
    source, target = a.ravel(), out.ravel()
    blocks = min(2048, -(-a.size // (4 * block)))
    kernel = add_striding_pairs[blocks, block, stream]
    return lambda: kernel(source, target)
