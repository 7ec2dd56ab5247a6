"""Computes `discount` on the GPU with Numba: the seed's gufuncs, `vectorize`, and kernels written by hand.

Gufuncs and ufuncs are compiled at first use. With target='cuda' their decorators compile at once; on import
that would create a CUDA context in every process that only collects tests.
"""

from __future__ import annotations

import functools

from numba import cuda, guvectorize, vectorize

from .problem import discount

# gufuncs


def multiply_whole(mult, discount, cv):
    """The core that takes all three axes, so that one worker does everything."""
    for t in range(discount.shape[0]):
        for i in range(discount.shape[1]):
            for k in range(discount.shape[2]):
                cv[t, i, k] = mult[i, k] * discount[t, i, k]


def multiply_time_step(mult, discount, cv):
    """The core that takes the (i, k) slice of one time step."""
    for i in range(mult.shape[0]):
        for k in range(mult.shape[1]):
            cv[i, k] = mult[i, k] * discount[i, k]


def multiply_row(mult, discount, cv):
    """The core that takes the (t, k) slice of one row i."""
    for t in range(discount.shape[0]):
        for k in range(mult.shape[0]):
            cv[t, k] = mult[k] * discount[t, k]


@functools.cache
def whole_gufunc():
    """One worker for any size: no axis is left to loop over."""
    types = ["void(float64[:,:], float64[:,:,:], float64[:,:,:])"]
    return guvectorize(types, "(i,k),(t,i,k)->(t,i,k)", target="cuda")(multiply_whole)


@functools.cache
def time_step_gufunc():
    """One worker a time step."""
    types = ["void(float64[:,:], float64[:,:], float64[:,:])"]
    return guvectorize(types, "(i,k),(i,k)->(i,k)", target="cuda")(multiply_time_step)


@functools.cache
def row_gufunc():
    """One worker a row i, for arrays whose first axis is i."""
    types = ["void(float64[:], float64[:,:], float64[:,:])"]
    return guvectorize(types, "(k),(t,k)->(t,k)", target="cuda")(multiply_row)


def rows_first(array):
    """A view of the (t, i, k) device array with axes (i, t, k); nothing is copied.

    Device arrays transpose in two dimensions only, so the view is put together from the strides.
    """
    try:
        return array.transpose((1, 0, 2))
    except NotImplementedError:
        (t, i, k), (step, row, item) = array.shape, array.strides
        return cuda.cudadrv.devicearray.DeviceNDArray(
            (i, t, k), (row, step, item), array.dtype, gpu_data=array.gpu_data
        )


@discount.variant("numba", max_size={"t": 500, "i": 4000}, layouts=("misaligned",))
def gufunc_whole(mult, discount, cv, stream):
    """The seed's first try: the whole problem in one core call, that is in a single thread of the device."""
    gufunc = whole_gufunc()
    return lambda: gufunc(mult, discount, out=cv, stream=stream)


@discount.variant("numba", min_size={"t": 2}, layouts=("misaligned",))
def gufunc_sliced_t(mult, discount, cv, stream):
    """One worker a time step: t threads, each walking a slice of its own, so no access is coalesced.

    For a single time step numba-cuda 0.30.4 expects an output without that axis ("output shape mismatch").
    """
    gufunc = time_step_gufunc()
    return lambda: gufunc(mult, discount, out=cv, stream=stream)


@discount.variant("numba", layouts=("misaligned",))
def gufunc_sliced_i(mult, discount, cv, stream):
    """One worker a row, on transposed views: inputs are read and the output is written where they lie.

    Nothing is converted, so the number holds the kernel alone, and neighbouring threads touch neighbouring
    rows of one time step. The seed refilled its arrays in (i, t, k) layout instead: another problem.
    """
    gufunc = row_gufunc()
    discount_rows, cv_rows = rows_first(discount), rows_first(cv)
    return lambda: gufunc(mult, discount_rows, out=cv_rows, stream=stream)


@cuda.jit
def swap_leading_axes(source, target):
    """target[b, a, k] = source[a, b, k]; neighbouring threads write neighbouring elements."""
    index = cuda.grid(1)
    if index < target.size:
        k = index % target.shape[2]
        row = index // target.shape[2]
        target[row // target.shape[1], row % target.shape[1], k] = source[
            row % target.shape[1], row // target.shape[1], k
        ]


@discount.variant("numba", layouts=("misaligned",))
def gufunc_sliced_i_copied(mult, discount, cv, t, i, k, stream):
    """One worker a row in the seed's (i, t, k) layout; both conversions are inside the number.

    Converting the input while preparing would hide work and replay old data once `discount` changes.
    """
    gufunc = row_gufunc()
    discount_rows = cuda.device_array((i, t, k), discount.dtype)
    cv_rows = cuda.device_array((i, t, k), cv.dtype)
    grid, block = -(-t * i * k // 256), 256

    def launch():
        swap_leading_axes[grid, block, stream](discount, discount_rows)
        gufunc(mult, discount_rows, out=cv_rows, stream=stream)
        swap_leading_axes[grid, block, stream](cv_rows, cv)

    return launch


@discount.variant("numba", host_data=True, max_size={"i": 10_000})
def gufunc_sliced_i_from_host(mult, discount, cv):
    """The seed's fastest gufunc called with host arrays: Numba copies pageable memory in and out by itself.

    The gufunc wants i first; that conversion, both ways and on the host, is inside the number.
    """
    gufunc = row_gufunc()

    def launch():
        # A transposed view cannot be copied to the device as it lies: Numba refuses what is not contiguous.
        rows = gufunc(mult, discount.transpose(1, 0, 2).copy())
        cv[...] = rows.transpose(1, 0, 2)

    return launch


@discount.variant("numba", host_data=True, max_size={"i": 10_000}, min_size={"t": 2})
def gufunc_sliced_t_from_host(mult, discount, cv):
    """Sliced over t and called with host arrays, as in the seed: Numba copies in and out by itself."""
    gufunc = time_step_gufunc()
    return lambda: gufunc(mult, discount, out=cv)


# vectorize


@functools.cache
def multiply_ufunc():
    """The scalar product as a CUDA ufunc."""

    def multiply_scalars(factor, value):
        return factor * value

    return vectorize(["float64(float64, float64)"], target="cuda")(multiply_scalars)


@discount.variant("numba", scopes=("end_to_end",), max_size={"i": 10_000})
def vectorize_broadcast(mult, discount, cv, i, k, stream):
    """`multiply(mult, discount, out=cv)` on device arrays, which does not stay on the device.

    The engine flattens its arguments; a broadcast one cannot be flattened, so numba-cuda 0.30.4 copies `mult`
    to the host, blows it up there to the size of `discount` and copies that back, in every call: it is timed
    end to end only. `mult` gets its missing axis here, because the engine compares axes from the left: given
    (i, k), it sets all strides to 0 and multiplies by mult[0, 0] throughout.
    """
    ufunc = multiply_ufunc()
    mult_with_t = mult.reshape(1, i, k)
    return lambda: ufunc(mult_with_t, discount, out=cv, stream=stream)


@discount.variant("numba", layouts=("misaligned",))
def vectorize_each_t(mult, discount, cv, t, stream):
    """The same ufunc once a time step on flat views: it stays on the device, at the price of t launches."""
    ufunc = multiply_ufunc()
    factor = mult.ravel()
    steps = [(discount[step].ravel(), cv[step].ravel()) for step in range(t)]

    def launch():
        for values, products in steps:
            ufunc(factor, values, out=products, stream=stream)

    return launch


@discount.variant("numba", host_data=True, max_size={"i": 10_000})
def vectorize_from_host(mult, discount, cv):
    """The ufunc called with host arrays: `mult` is blown up to full size on the host and then copied in."""
    ufunc = multiply_ufunc()
    mult_with_t, cv_flat = mult[None], cv.reshape(-1)  # the engine wants a host output flat
    return lambda: ufunc(mult_with_t, discount, out=cv_flat)


# kernels


@cuda.jit
def multiply_naive(mult, discount, cv):
    """One thread an element, thread x along t: neighbouring threads are i·k elements apart."""
    t, i, k = cuda.grid(3)
    if t < cv.shape[0] and i < cv.shape[1] and k < cv.shape[2]:
        cv[t, i, k] = mult[i, k] * discount[t, i, k]


@cuda.jit
def multiply_flat(mult, discount, cv):
    """One thread an element of the flat arrays; `mult` starts again with every time step."""
    index = cuda.grid(1)
    if index < cv.size:
        cv[index] = mult[index % mult.size] * discount[index]


@cuda.jit
def multiply_columns(mult, discount, cv, steps):
    """One thread an (i, k) column and `steps` time steps of it: mult is read once and kept in a register."""
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    columns = mult.size
    if column < columns:
        factor = mult[column]
        first = cuda.blockIdx.y * steps
        for t in range(first, min(first + steps, cv.size // columns)):
            cv[t * columns + column] = factor * discount[t * columns + column]


@discount.variant("numba", layouts=("misaligned", "strided"))
def cuda_jit_naive(mult, discount, cv, t, i, k, stream):
    """`t, i, k = cuda.grid(3)` as the axes are written down: uncoalesced, because x runs along t."""
    block = (4, 8, 8)
    grid = (-(-t // 4), -(-i // 8), -(-k // 8))
    kernel = multiply_naive[grid, block, stream]
    return lambda: kernel(mult, discount, cv)


@discount.variant("numba", block=(128, 256), layouts=("misaligned",))
def cuda_jit_flat(mult, discount, cv, t, i, k, stream, block):
    """One thread an element, coalesced; an integer division finds the factor."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    kernel = multiply_flat[-(-t * i * k // block), block, stream]
    return lambda: kernel(*arrays)


@discount.variant("numba", block=(128, 256), steps=(4, 20), layouts=("misaligned",))
def cuda_jit_columns(mult, discount, cv, t, i, k, stream, block, steps):
    """Each thread keeps its factor in a register over several time steps; every access is coalesced."""
    arrays = mult.ravel(), discount.ravel(), cv.ravel()
    kernel = multiply_columns[(-(-i * k // block), -(-t // steps)), block, stream]
    return lambda: kernel(*arrays, steps)
