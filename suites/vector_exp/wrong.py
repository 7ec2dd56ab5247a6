"""Declares broken variants; each must be rejected for its fault."""

import math

import numpy as np
from numba import cuda

from .problem import vector_exp

BLOCK = 128


@cuda.jit
def exp_of_first(x, y, count):
    """Right for the first `count` elements, and writes no others."""
    i = cuda.grid(1)
    if i < count:
        y[i] = math.exp(x[i])


@cuda.jit
def exp_of_next(x, y):
    """Element i of the result is that of element i + 1."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] = math.exp(x[min(i + 1, x.size - 1)])


@cuda.jit
def exp_of_two(x, y):
    """Is never compiled: a compiled kernel would take more arguments without complaint."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] = math.exp(x[i])


@cuda.jit
def exp_in_place(x, y):
    """Overwrites its input with the result."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] = math.exp(x[i])
        y[i] = x[i]


@cuda.jit
def exp_by_series(x, y):
    """Six terms of the Taylor series: fine near 0, wrong in the tails."""
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        y[i] = 1 + v * (1 + v / 2 * (1 + v / 3 * (1 + v / 4 * (1 + v / 5))))


@cuda.jit
def exp_through_logarithm(x, y):
    """sqrt(x) is NaN for the negative half of the inputs."""
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        root = math.sqrt(v) if v >= 0 else math.nan
        y[i] = math.exp(root * root)


@cuda.jit
def copy(source, target):
    """Copies element by element."""
    i = cuda.grid(1)
    if i < source.size:
        target[i] = source[i]


def blocks(n):
    """Blocks that cover n elements."""
    return -(-n // BLOCK)


@vector_exp.wrong("numba", expected_fault="not written")
def nothing_written():
    """Launches nothing; right only where the allocator hands back an old answer."""
    return lambda: None


@vector_exp.wrong("numba", expected_fault="not written")
def tail_missing(x, y, n, stream):
    """Rounds n − 1 down to whole vectors of eight and forgets the rest."""
    count = (n - 1) // 8 * 8
    return lambda: exp_of_first[blocks(n), BLOCK, stream](x, y, count)


@vector_exp.wrong("numba", expected_fault="wrong values")
def off_by_one(x, y, n, stream):
    """Reads the neighbour of the element that it writes."""
    return lambda: exp_of_next[blocks(n), BLOCK, stream](x, y)


@vector_exp.wrong("numba", expected_fault="wrong values")
def truncated_series(x, y, n, stream):
    """A polynomial that is right for small arguments only."""
    return lambda: exp_by_series[blocks(n), BLOCK, stream](x, y)


@vector_exp.wrong("host", expected_fault="wrong values")
def half_precision(x, y):
    """Computes in float16 and widens the result: ten bits, in an array that looks like float32."""

    def launch():
        y[:] = np.exp(x.astype(np.float16))

    return launch


@vector_exp.wrong("numba", expected_fault="input modified")
def input_overwritten(x, y, n, stream):
    """Right, but x holds the result afterwards."""
    return lambda: exp_in_place[blocks(n), BLOCK, stream](x, y)


@vector_exp.wrong("numba", expected_fault="unexpected NaN")
def nan_for_negatives(x, y, n, stream):
    """exp(√x²) for positive x, NaN for the others."""
    return lambda: exp_through_logarithm[blocks(n), BLOCK, stream](x, y)


@vector_exp.wrong("numba", expected_fault="stale result")
def replayed(x, y, n, stream):
    """Computes once for its pair of buffers and copies that answer out whatever they hold now."""
    answer = cuda.device_array(n, np.float32, stream=stream)
    answered = []

    def launch():
        if not answered:
            exp_of_first[blocks(n), BLOCK, stream](x, answer, n)
            answered.append(True)
        copy[blocks(n), BLOCK, stream](answer, y)

    return launch


@vector_exp.wrong("host", allocates=True, expected_fault="wrong dtype")
def double_returned(x):
    """Returns float64: the right values in twice the bytes."""
    return lambda: np.exp(x, dtype=np.float64)


@vector_exp.wrong("host", allocates=True, expected_fault="wrong shape")
def column_returned(x):
    """Returns shape (n, 1), which broadcasts against the reference into n² comparisons."""
    return lambda: np.exp(x)[:, np.newaxis]


@vector_exp.wrong("host", allocates=True, expected_fault="wrong type")
def list_returned(x):
    """Returns a list, which NumPy would quietly convert."""
    return lambda: np.exp(x).tolist()


@vector_exp.wrong("numba", expected_fault="launch failed")
def too_many_arguments(x, y, n, stream):
    """Launches with one argument too many, which Numba notices while it compiles."""
    return lambda: exp_of_two[blocks(n), BLOCK, stream](x, y, n)


@cuda.jit
def exp_up_to_and_including(x, y):
    """`<=` where `<` was meant: the thread after the last one writes too."""
    i = cuda.grid(1)
    if i <= x.size:
        y[i] = math.exp(x[min(i, x.size - 1)])


@cuda.jit
def exp_inside_blocks(x, y):
    """Leaves out the last thread of each block, as a stencil that wants a neighbour on the right would."""
    i = cuda.grid(1)
    if i < x.size and cuda.threadIdx.x < cuda.blockDim.x - 1:
        y[i] = math.exp(x[i])


@vector_exp.wrong(
    "numba", expected_fault="out of bounds", needs_gpu="a write out of bounds, at which it raises"
)
def one_behind_the_end(x, y, n, stream):
    """Every element is right, and so would be one that is not there."""
    return lambda: exp_up_to_and_including[blocks(n + 1), BLOCK, stream](x, y)


@vector_exp.wrong("numba", expected_fault="not written")
def block_edges_missing(x, y, n, stream):
    """Off by one at the edge of each block."""
    return lambda: exp_inside_blocks[blocks(n + 1), BLOCK, stream](x, y)


@vector_exp.wrong("host", allocates=True, expected_fault="wrong strides")
def real_part_returned(x):
    """Computes in complex numbers and returns the real part, which is every second float of its memory."""
    return lambda: np.exp(x.astype(np.complex64)).real


@vector_exp.wrong("host", allocates=True, expected_fault="wrong type")
def masked_array_returned(x):
    """`numpy.ma.exp`: a subclass that carries a mask along."""
    return lambda: np.ma.exp(x)


@vector_exp.wrong("host", allocates=True, expected_fault="aliased")
def same_memory_each_time(x):
    """Saves an allocation: the next call overwrites what this one returned."""
    result = np.empty_like(x)
    return lambda: np.exp(x, out=result)


@vector_exp.wrong("numba", expected_fault="not written")
def only_default_shapes(x, y, n, stream):
    """Tuned for the sizes that it is timed at; at any other it forgets the last element."""
    count = n if n in (257, 1024) else n - 1
    return lambda: exp_of_first[max(1, blocks(n)), BLOCK, stream](x, y, count)


@vector_exp.wrong("numba", expected_fault="not written", block=(96,))
def one_beyond_a_block(x, y, n, stream, block):
    """Counts blocks from n - 1: where one element begins a new block, nobody computes it."""
    grid = max(1, -(-(n - 1) // block))
    return lambda: exp_of_first[grid, block, stream](x, y, n)


@vector_exp.wrong("numba", expected_fault="not written")
def one_short_of_a_warp(x, y, n, stream):
    """Takes the last lane for the tail: where a warp lacks just that one, the last element is left out."""
    count = n - 1 if n % 32 == 31 else n
    return lambda: exp_of_first[max(1, blocks(n)), BLOCK, stream](x, y, count)


@vector_exp.wrong("host", expected_fault="wrong values")
def nan_swallowed(x, y):
    """Clamps from below by `fmax`, which prefers the number: NaN goes in and zero comes out."""
    return lambda: np.exp(np.fmax(x, np.float32(-103)), out=y)


@vector_exp.wrong("host", expected_fault="unexpected NaN")
def zero_by_zero(x, y):
    """1 + x · (expm1(x) / x): more accurate near zero, and 0/0 at it."""

    def launch():
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            y[:] = np.where(np.abs(wide) < 80, 1 + wide * (np.expm1(wide) / wide), np.exp(wide))

    return launch


@vector_exp.wrong("host", expected_fault="wrong values")
def right_for_the_first_seed(x, y):
    """Knows the contents of the first seed by one element, and has the answer; the rest it takes lightly."""
    first, answer = x[0].copy(), np.exp(x)

    def launch():
        y[:] = answer if x[0] == first else np.exp(x.astype(np.float16))

    return launch


@cuda.jit
def exp_by_int32(x, y):
    """Counts elements in 32 bits: Numba takes the negative indices that follow for ones from the end."""
    i = np.int32(cuda.grid(1))
    if i < x.size:
        y[i] = math.exp(x[i])


@vector_exp.wrong(
    "numba", expected_fault="not written", at={"n": 2**31 + 11}, needs_gpu="overflow of 32-bit integers"
)
def int32_index(x, y, n, stream):
    """Is right at usual sizes; above 2³¹ elements it leaves out the last ones."""
    return lambda: exp_by_int32[blocks(n), BLOCK, stream](x, y)


@vector_exp.wrong("host", expected_fault="wrong values", dtypes=("float64",))
def always_single(x, y):
    """Computes in float32 whatever it is given, which is right for float32 only."""

    def launch():
        y[:] = np.exp(x.astype(np.float32))

    return launch


@vector_exp.wrong("host", expected_fault="out of bounds", layouts=("strided",))
def strides_of_x_for_y(x, y, n):
    """Asks one array for the strides of both, as where a stride is passed along with the first pointer."""
    alike = np.lib.stride_tricks.as_strided(y, (n,), x.strides)
    return lambda: np.exp(x, out=alike)


@vector_exp.wrong("host", expected_fault="wrong values", layouts=("strided",))
def strides_of_input_ignored(x, y, n):
    """Reads n neighbours from the address of x, and writes where y has its elements."""
    neighbours = np.lib.stride_tricks.as_strided(x, (n,), (x.itemsize,))
    return lambda: np.exp(neighbours, out=y)


@vector_exp.wrong("host", expected_fault="not deterministic", determinism="bitwise")
def sometimes_an_ulp_more(x, y):
    """Says that it is bitwise, and is an ULP off in every second launch, as sums in another order are."""
    launches = []

    def launch():
        launches.append(1)
        np.exp(x, out=y)
        if len(launches) % 2 == 0:
            np.nextafter(y, np.float32(np.inf), out=y)

    return launch
