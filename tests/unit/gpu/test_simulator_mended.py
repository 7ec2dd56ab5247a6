"""Tests Numba's fixed simulator: all checks run in one fresh process, and each is a test here."""

import ast
import asyncio
import functools
import importlib.util
import json
import linecache
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.simulator.errors import SimulatorUnsupported
from pytest_gpukern.gpu.simulator.switch import SimulatorState, activate

# Filled in the child: the module-level `from numba import cuda` of a user's test module.
cuda: Any = None
np: Any = None


def refused(feature, call):
    with pytest.raises(SimulatorUnsupported) as caught:
        call()
    assert feature in caught.value.feature, caught.value.feature
    assert "not in the simulator: " in str(caught.value)


def named(function):
    """Give a lambda a name: numba-cuda writes the body's name into a kernel's source."""
    function.__name__ = "body"
    return function


def one_thread(function):
    """Run a function of no arguments as a kernel of one thread and return what it returned."""
    box = []

    @cuda.jit
    def kernel():
        box.append(function())

    kernel[1, 1]()
    return box[0]


# --- vectorize ------------------------------------------------------------------------------------


def check_vectorize_agrees_with_the_cpu_ufunc_for_exact_types():
    from numba import vectorize

    def body(a, b):
        return a * b - a / (b + 1)

    signatures = ["float32(float32, float32)", "float64(float64, float64)"]
    on_cpu = vectorize(signatures)(body)
    for on_cuda in (vectorize(signatures, target="cuda")(body), cuda.vectorize(signatures)(body)):
        for dtype, rtol in (("f4", 1e-5), ("f8", 1e-14)):
            a = np.linspace(0.5, 9, 12, dtype=dtype).reshape(3, 4)
            b = np.linspace(1, 2, 4, dtype=dtype)
            row = b[np.newaxis]
            for left, right in ((a, a), (a, row), (a[:, :1], row), (a, np.dtype(dtype).type(1)), (b, 2)):
                got = on_cuda(left, right)
                assert got.dtype == dtype
                assert type(got) is np.ndarray
                np.testing.assert_allclose(got, on_cpu(left, right), rtol=rtol)


def check_vectorize_returns_what_a_gpu_would_where_numba_cuda_broadcasts_wrongly():
    from numba.cuda.deviceufunc import UFuncMechanism

    add = cuda.vectorize(["float64(float64, float64)"])(named(lambda a, b: a + b))
    table, row = np.zeros((3, 4)), np.arange(1, 5.0)
    on_a_gpu = UFuncMechanism({}, ())._broadcast([table, row])[1]
    for left, right in ((table, row), (cuda.to_device(table), cuda.to_device(row))):
        got = add(left, right)
        np.testing.assert_array_equal(np.asarray(got.copy_to_host() if left is not table else got), on_a_gpu)


def check_vectorize_takes_and_returns_scalars_of_the_signatures_types():
    from numba import int8, int32, uint8

    seen = []

    @cuda.vectorize(["float64(float32, int16)"])
    def body(a, b):
        seen.append((type(a), type(b)))
        return a

    assert body(np.ones(1, "f4"), 3).dtype == "f8"
    assert seen == [(np.float32, np.int16)]
    truncate = cuda.vectorize(["int32(float64)"])(named(lambda a: a))
    np.testing.assert_array_equal(truncate(np.array([2.9, -2.9])), [2, -2])
    wrap = cuda.vectorize([uint8(int32)])(named(lambda a: a - 1))
    np.testing.assert_array_equal(wrap(np.array([0, 256, 5], "i4")), [255, 255, 4])
    constant = cuda.vectorize([int8(int32)])(named(lambda a: 200))
    np.testing.assert_array_equal(constant(np.zeros(1, "i4")), [-56])
    ordered = cuda.vectorize(["boolean(float32, float32)"])(named(lambda a, b: a < b))
    assert ordered(np.float32(1), np.ones(2, "f4") * 2).dtype == np.bool_


def check_vectorize_raises_no_floating_point_errors_or_warnings():
    divide = cuda.vectorize(["float32(float32, float32)", "int32(int32, int32)"])(named(lambda a, b: a / b))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = divide(np.array([1, 0, 3e38], "f4"), np.array([0, 0, 1e-3], "f4"))
    assert got[0] == np.inf
    assert np.isnan(got[1])
    assert got[2] == np.inf


def check_vectorize_bodies_call_intrinsics_and_device_functions():
    @cuda.jit(device=True)
    def smaller(a):
        return cuda.selp(a < 1, a, 1)

    count = cuda.vectorize(["int32(int32)"])(named(lambda a: smaller(a) + cuda.warpsize))
    np.testing.assert_array_equal(count(np.array([7, -1], "i4")), [33, 31])
    from numba import int32

    refused("give it in the signature", lambda: cuda.vectorize([(int32,)])(named(lambda a: a)))
    where = cuda.vectorize(["int32(int32)"])(named(lambda a: cuda.grid(1)))
    refused("threads inside a vectorized function (cuda.grid)", lambda: where(np.zeros(1, "i4")))
    with pytest.raises(TypeError, match="returned None"):
        cuda.vectorize(["float32(float32)"])(named(lambda a: None))(np.zeros(1, "f4"))


def check_vectorize_writes_to_out_and_keeps_device_arrays_on_the_device():
    add = cuda.vectorize(["float32(float32, float32)"])(named(lambda a, b: a + b))
    a = np.arange(4, dtype="f4")
    out = np.zeros(4, "f4")
    assert add(a, a, out=out) is not None
    np.testing.assert_array_equal(out, 2 * a)
    on_device = cuda.to_device(a)
    got = add(on_device, 1)
    assert cuda.is_cuda_array(got)
    np.testing.assert_array_equal(got.copy_to_host(), a + 1)
    device_out = cuda.device_array(4, np.float32)
    got = add(on_device, a, out=device_out, stream=cuda.stream())
    assert cuda.is_cuda_array(got)
    np.testing.assert_array_equal(device_out.copy_to_host(), 2 * a)
    table = add(cuda.to_device(np.ones((3, 4), "f4")), on_device.reshape(1, 4))
    np.testing.assert_array_equal(table.copy_to_host(), np.ones((3, 4), "f4") + a)


# --- literals -------------------------------------------------------------------------------------


def check_literals_are_as_wide_as_a_compiler_makes_them():
    from numba import njit

    def weigh(x, out):
        scale, total = 0.1, 0.0
        for i in range(x.size):
            total += x[i]
        for weight in (0.25, 0.3):
            total += weight * x[0]
        out[0], out[1], out[2] = total, scale * x[0], x[0] > scale

    x = np.full(1000, 0.1, "float32")
    compiled, simulated = np.zeros((2, 3))
    njit(weigh)(x, compiled)
    cuda.jit(weigh)[1, 1](x, simulated)
    np.testing.assert_array_equal(simulated, compiled)


def check_operators_have_the_types_that_numba_compiles():
    from numba import njit

    def whole(x, y):
        total = -x
        for i in range(3):
            total += x * y - i
        product = (x * 0xFF51AFD7ED558CCD) ^ y
        return x + y, x - y, x * y, x / y, x // y, x % y, x**2, ~x, x & y, x << 3, x >> 1, total, product

    def real(x, y):
        return x + y, x * y, x / y, y - x, x**2 * y, (y + 1.5) * x

    numbers = [True, 300, np.int8(-128), np.uint8(200), np.uint16(65535), np.int32(-(2**31)), np.uint32(7)]
    numbers += [np.int64(-(2**62)), np.uint64(2**64 - 1), np.uint64(0)]
    for function, others in ((whole, numbers), (real, [np.float32(0.1), np.float64(1e300), 0.3])):
        kernel = cuda.jit(function, device=True).fn
        compiled = njit(error_model="numpy")(function)
        for x, y in [*zip(numbers, others * 4), *zip(numbers, reversed(others))]:  # noqa: B905
            with np.errstate(all="ignore"):
                got = kernel(x, y)
            for one, other in zip(got, compiled(x, y), strict=True):
                np.testing.assert_allclose(float(one), float(other), 1e-15, err_msg=f"{x!r}, {y!r}")


def check_stores_casts_and_device_functions_keep_to_those_types():
    from numba import uint8

    square = cuda.jit(device=True)(named(lambda x: x * x))

    def write(x, out, records, narrow=3):
        shared = cuda.shared.array(1, np.uint8)
        shared[0] = x[0]
        out[cuda.grid(1)] += square(x[0]) + shared[0]
        out[1] = uint8(x[0] + 100) + np.int16(70000) + (int(x[0]) - x[1] < 0)
        records[0].count += x[0] << narrow
        x[1] = 300
        x[2] -= x[0] + x[0]

    x, out = np.array([200, 255, 255], np.uint8), np.zeros(2, np.int64)
    records = np.zeros(1, [("count", np.int32)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cuda.jit(write)[1, 1](x, out, records)
    assert out.tolist() == [200 * 200 + 200, 44 + 4464]
    assert (records["count"][0], *x) == (1600, 200, 44, (255 - 400) % 256)


def check_whole_numbers_are_cut_to_the_width_of_what_they_are_stored_into():
    from math import exp as power_of_e

    alias = np.uint8

    def write(x, u, found):
        x[0], x[1] = 200, x[2] - 300
        x[2]: int = x[2] * 300
        x[3] += x[2] - 10**-3 + (2**63 > 0)
        x[4] = int(np.float32(np.nan)) == 0
        u[0] = cuda.atomic.add(u, 1, -1) + 1
        cuda.atomic.max(u, 2, 2**32 + 5)
        found[0], found[1] = alias(300) + sum((x[0], x[0], alias(255))), power_of_e(1000)

    x, u, found = np.full(5, 100, np.int8), np.zeros(3, np.uint32), np.zeros(2)
    cuda.jit(write)[1, 1](x, u, found)
    assert x[:4].tolist() == [-56, 56, 48, (100 + 48) - 256]
    assert u.tolist() == [1, 2**32 - 1, 5]
    assert found.tolist() == [44 - 56 - 56 + 255, np.inf]


def check_an_augmented_assignment_loads_before_it_computes_and_lambdas_of_one_line_keep_apart():
    @cuda.jit(device=True)
    def overwrite(x):
        x[0] = 50
        return 1

    def add(x):
        x[0] += overwrite(x)

    x = np.array([5, 200, 100], np.uint8)
    cuda.jit(add)[1, 1](x)
    assert x[0] == 6

    def add_behind_a_slice(y, n):
        y[1:][n - n] += n

    y = np.array([0, 2**31 - 1], np.int32)
    cuda.jit(add_behind_a_slice)[1, 1](y, np.int64(3))
    assert y[1] == 2 - 2**31
    both = [cuda.jit(device=True)(named(function)) for function in (lambda x, y: x + y, lambda x, y: x * y)]
    out = np.zeros(2, np.int64)

    def compute(x, out):
        out[0], out[1] = both[0](x[1], x[2]), both[1](x[1], x[2])

    cuda.jit(compute)[1, 1](x, out)
    assert out.tolist() == [300, 20_000]


def check_a_kernel_made_by_exec_has_those_types_if_linecache_has_its_lines():
    text, names = 'def kernel(x, out):\n    "\\d"\n    out[0] = x[0] + x[0]\n', {}
    linecache.cache["<of a template>"] = (len(text), None, text.splitlines(keepends=True), "<of a template>")
    with warnings.catch_warnings(action="ignore"):
        exec(compile(text, "<of a template>", "exec"), names)
    out = np.zeros(1, np.int64)
    with warnings.catch_warnings(action="error"):  # of "\\d" once more
        cuda.jit(names["kernel"])[1, 1](np.array([200], np.uint8), out)
    assert out[0] == 400


def check_math_returns_what_a_gpu_does_where_python_raises():
    import math
    from math import exp

    def numbers(x, out):
        out[0], out[1], out[2] = math.exp(x[0]), exp(1000), math.sinh(-x[0])
        out[3], out[4], out[5] = math.log(x[1]), math.pow(x[1], -1.0), math.lgamma(-1.0)
        out[6], out[7], out[8] = math.sqrt(-x[0]), math.fmod(1.0, x[1]), math.gamma(-1.0)
        out[9], out[10] = 1 / int(x[1]), math.erf(x[1])
        out[11], out[12], out[13] = math.exp2(10 * x[0]), math.remainder(x[1], x[1]), math.remainder(5.0, 3.0)

    for dtype in ("float32", "float64"):
        out = np.ones(14)
        cuda.jit(numbers)[1, 1](np.array([1000, 0], dtype), out)
        inf, nan = np.inf, np.nan
        np.testing.assert_array_equal(
            out, [inf, inf, -inf, -inf, inf, inf, nan, nan, nan, inf, 0, inf, nan, -1]
        )


def check_max_and_min_of_two_floats_are_instructions_and_others_compare():
    """As `cuda.compile_ptx` shows: max.f64 of two floats, which returns the number; else setp and selp."""
    nan, half, single = np.nan, np.float16, np.float32
    largest = cuda.jit(device=True)(named(lambda *x: max(*x)))
    smallest = cuda.jit(device=True)(named(lambda *x: min(*x)))
    for given, most, least in (
        ((nan, 1.0), 1.0, 1.0),
        ((np.float64(1), nan), 1.0, 1.0),
        ((single(nan), single(1)), single(1), single(1)),
        ((single(nan), 2.0), 2.0, 2.0),
        ((nan, nan), nan, nan),
        ((-0.0, 0.0), 0.0, -0.0),
        ((0.0, -0.0), 0.0, -0.0),
        ((single(nan), 0), nan, nan),
        ((0, single(nan)), 0.0, 0.0),
        ((half(nan), half(1)), half(nan), half(nan)),
        ((half(1), single(nan)), single(1), single(1)),
        ((nan, 1.0, 2.0), nan, nan),
        ((1.0, nan, 2.0), 2.0, 1.0),
        (((nan, 1.0),), nan, nan),
        ((np.uint8(200), np.int8(-3)), np.int16(200), np.int16(-3)),
        ((np.int64(-1), np.uint64(5)), 5.0, -1.0),
        ((3, np.int32(2)), np.int64(3), np.int64(2)),
    ):
        for got, expected in ((largest(*given), most), (smallest(*given), least)):
            assert repr(np.asarray(got)) == repr(np.asarray(expected)), (given, got)
    larger = cuda.vectorize(["float32(float32, float32)"])(named(lambda a, b: max(a, b)))
    assert larger(np.array([nan, 1], "f4"), np.array([1, nan], "f4")).tolist() == [1, 1]


def check_narrow_floats_have_the_types_that_numba_compiles():
    import math

    def compute(x, y, n):
        return x * n, n - x, x**n, x // y, x % y, x**y

    half, wide = np.float16, ("f8", "f8", "f4", "f4", "f4", "f4")
    for x, y, n, expected in (
        (half(3), half(2), 2, wide),
        (half(3), np.int8(2), np.int64(2), wide),
        (half(3), np.True_, np.uint16(2), wide),
        (half(3), np.uint8(2), np.int8(2), ("f2", "f2", "f4", "f4", "f4", "f4")),
        (half(3), half(2), np.uint8(2), ("f4",) * 6),
    ):
        assert [value.dtype for value in cuda.jit(device=True)(compute).fn(x, y, n)] == [*expected]
    products = cuda.jit(device=True)(named(lambda z: (z * 2, 2 + z, z**2, z * np.uint16(2), z * np.int16(2))))
    assert [value.dtype for value in products.fn(np.complex64(1j))] == ["c16"] * 4 + ["c8"]
    functions = cuda.jit(device=True)(
        named(lambda x: (math.exp(x), math.sqrt(x), math.tanh(x), math.pow(x, x)))
    )
    assert [value.dtype for value in functions.fn(half(12))] == ["f2", "f2", "f4", "f4"]
    rounded = cuda.jit(device=True)(named(lambda x: (math.floor(x), math.ceil(x), math.trunc(x))))
    assert [value.dtype for value in rounded.fn(np.float32(1e20))] == ["f4"] * 3
    assert rounded.fn(-2.5) == (-3, -2, -2)

    def count(x, out):
        for i in range(math.ceil(x)):
            cuda.atomic.add(out, (0, math.floor(x - i)), 1)

    out = np.zeros((1, 3), np.int32)
    cuda.jit(count)[1, 1](2.5, out)
    assert out.tolist() == [[1, 1, 1]]


def check_cmath_returns_what_a_gpu_does_where_python_raises():
    import cmath
    from cmath import exp

    def numbers(z, zero, out):
        out[0], out[1], out[2] = exp(z), cmath.sinh(z), cmath.log(zero)
        out[3], out[4] = cmath.log10(zero), cmath.atanh(zero + 1)
        out[5], out[6], out[7] = cmath.log(z, 10), cmath.phase(-1 + zero), cmath.polar(z)[0]
        out[8], out[9] = cmath.rect(2.0, 0.5), cmath.acos(zero) + cmath.sqrt(-1 + zero)

    expected = [np.inf, np.inf, -np.inf, -np.inf, np.inf, 3, np.pi, 1000, 2 * np.cos(0.5), np.pi / 2]
    for kind in (np.complex64, np.complex128):
        out = np.zeros(10, complex)
        cuda.jit(numbers)[1, 1](kind(1000), kind(0), out)
        np.testing.assert_allclose(out.real, expected, rtol=1e-6)
        np.testing.assert_allclose(out[8:].imag, [2 * np.sin(0.5), 1], rtol=1e-6)
        assert cuda.jit(device=True)(named(lambda z: cmath.exp(z))).fn(kind(1j)).dtype == kind


def check_random_numbers_warn_of_nothing():
    with warnings.catch_warnings(action="error"):
        from numba.cuda import random

        @cuda.jit
        def draw(states, out):
            i = cuda.grid(1)
            out[i, 0] = random.xoroshiro128p_uniform_float32(states, i)
            out[i, 1] = random.xoroshiro128p_normal_float64(states, i)

        states, out = random.create_xoroshiro128p_states(3, seed=1, subsequence_start=1), np.zeros((3, 2))
        draw[1, 3](states, out)
    expected = [[0.87634873, -1.54258806], [0.87109089, 0.84045613], [0.93648076, 0.16220262]]
    np.testing.assert_allclose(out, expected, rtol=1e-7)


# --- guvectorize ----------------------------------------------------------------------------------


def check_guvectorize_multiplies_matrices_over_loop_dimensions_into_outputs_that_may_be_given():
    from numba import guvectorize

    @guvectorize(
        ["void(float32[:,:], float32[:,:], float32[:,:])", "void(float64[:,:], float64[:,:], float64[:,:])"],
        "(m,n),(n,p)->(m,p)",
        target="cuda",
    )
    def matmul(a, b, c):
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                total = 0.0
                for k in range(a.shape[1]):
                    total += a[i, k] * b[k, j]
                c[i, j] = total

    assert matmul.max_blocksize == 2**30
    rng = np.random.default_rng(1)
    for dtype in ("f4", "f8"):
        a, b = rng.random((2, 5, 2, 3)).astype(dtype), rng.random((2, 5, 3, 4)).astype(dtype)
        for left, right in ((a, b), (a, b[0, 0]), (a[0, 0], b), (a[0, 0], b[0, 0])):
            got = matmul(left, right)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, left @ right, rtol=1e-5)
    a = rng.random((5, 2, 2))
    by_position, by_name = np.zeros((5, 2, 2)), np.zeros((5, 2, 2))
    matmul(a, a, by_position)
    matmul(a, a, out=by_name)
    np.testing.assert_allclose(by_position, a @ a)
    np.testing.assert_allclose(by_name, a @ a)
    device_out = cuda.device_array((5, 2, 2))
    got = matmul(cuda.to_device(a), cuda.to_device(a[0]), device_out)
    assert got is device_out
    np.testing.assert_allclose(device_out.copy_to_host(), a @ a[0])
    assert cuda.is_cuda_array(matmul(cuda.to_device(a), a))


def check_guvectorize_takes_scalars_and_returns_them():
    from numba import guvectorize

    @guvectorize(["void(float32[:], float32, float32[:])"], "(n),()->(n)", target="cuda")
    def scale(x, factor, out):
        for i in range(x.shape[0]):
            out[i] = x[i] * factor

    x = np.arange(6, dtype="f4").reshape(2, 3)
    np.testing.assert_array_equal(scale(x, np.float32(2)), 2 * x)
    np.testing.assert_array_equal(scale(x, np.array([2, 3], "f4")), x * [[2], [3]])

    @cuda.guvectorize(["void(float64[:], float64[:])"], "(n)->()")
    def total(x, out):
        out[0] = 0
        for value in x:
            out[0] += value

    np.testing.assert_array_equal(total(np.arange(6.0).reshape(2, 3)), [3, 12])


# --- launches and decoration ----------------------------------------------------------------------


def check_each_configured_launcher_keeps_its_own_configuration():
    @cuda.jit
    def count(x):
        "Say it."
        cuda.atomic.add(x, 0, 1)

    small, large = count[1, 4], count[(2, 3), (5, 1), 0, 64]
    for launcher, threads in ((small, 4), (large, 30), (small, 4), (count.forall(7, 4), 8)):
        x = np.zeros(1)
        launcher(x)
        assert x[0] == threads
    assert small.py_func is count.py_func
    assert (small.__name__, small.__doc__) == ("count", "Say it.")
    assert small.extensions is count.extensions
    assert (large.griddim, large.blockdim, large.sharedmem) == ((2, 3, 1), (5, 1, 1), 64)
    assert count.grid_dim is None, "the kernel itself stays unconfigured"
    with pytest.raises(ValueError, match="not specified"):
        count(x)
    with pytest.raises(ValueError, match="at least the griddim and blockdim"):
        count[(1,)]


def check_forall_launches_whole_blocks_and_nothing_for_no_task():
    @cuda.jit
    def guarded(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = 1

    @cuda.jit
    def unguarded(x):
        x[cuda.grid(1)] = 1

    x = np.zeros(130)
    guarded.forall(130)(x)
    assert x.all()
    with pytest.raises(IndexError):
        unguarded.forall(130)(x)
    unguarded.forall(0)(np.zeros(0))
    with pytest.raises(ValueError, match="negative task count"):
        guarded.forall(-1)


def check_impossible_launches_fail_as_on_the_hardware():
    from numba.cuda.cudadrv.driver import CudaAPIError

    nothing = cuda.jit(lambda: None)
    for grid, block, shared, what in (
        (1, 1025, 0, "1025"),
        (1, (32, 33), 0, "1056 threads in a block; the limit is 1024"),
        (0, 1, 0, "grid.x is 0"),
        ((1, -1), 1, 0, "grid.y is -1"),
        ((1, 65536), 1, 0, "grid.y is 65536; it must be between 1 and 65535"),
        (1, (1, 1, 65), 0, "block.z is 65"),
        (1, 1, 49153, "49153 bytes of dynamic shared memory"),
    ):
        for kind in (CudaAPIError, ValueError):
            with pytest.raises(kind, match=f"CUDA_ERROR_INVALID_VALUE: .*{what}"):
                nothing[grid, block, 0, shared]()
    nothing[1, 1024, 0, 49152]()


def check_jit_takes_the_real_keywords_and_no_others():
    @cuda.jit(lineinfo=True, launch_bounds=(128, 2), fastmath=True, opt=False, cache=True, link=[])
    def kernel(x):
        x[0] = 5

    x = np.zeros(1)
    kernel[1, 1](x)
    assert x[0] == 5
    cuda.jit("void(float64[:])", max_registers=32)(kernel.py_func)[1, 1](x)
    with pytest.raises(TypeError, match="'max_register'"):
        cuda.jit(max_register=32)
    with pytest.raises(NotImplementedError, match="bounds checking"):
        cuda.jit(boundscheck=True)(kernel.py_func)


def check_other_code_is_refused_where_a_kernel_is_launched_or_called_and_not_where_it_is_declared():
    twice = cuda.declare_device("twice", "float64(float64)", link=cuda.CUSource("__device__ …"))
    kernel = cuda.jit("void()", link=[cuda.PTXSource(b".version 8.0")])(lambda: None)
    device = cuda.jit(lambda x: x, device=True, link="a.cu")
    for launch in (kernel[1, 1], kernel.forall(1), lambda: one_thread(lambda: device(1.0))):
        refused("a kernel linked with other code (cuda.jit(link=…))", launch)
    refused("other code (cuda.declare_device('twice'))", lambda: one_thread(lambda: twice(1.0)))
    refused("extensions of a kernel", cuda.jit(extensions=[object()])(lambda: None)[1, 1])


def check_a_kernel_calls_another_as_a_function_and_launches_none():
    x, add = np.zeros(1), cuda.jit(named(lambda x: cuda.atomic.add(x, 0, cuda.threadIdx.x)))
    cuda.jit(lambda: add(x))[1, 3]()
    assert x[0] == 3
    for launch in (functools.partial(add[1, 2], x), lambda: add[1, 2](x)):
        refused("a kernel that launches a kernel", functools.partial(one_thread, launch))


def check_host_threads_launch_in_turn_and_are_on_the_host_while_another_launches():
    inside, totals = threading.Event(), np.zeros(3)

    def slowly(value):
        inside.set()
        time.sleep(0.01)
        return cuda.selp(True, value, 0)

    count = cuda.jit(lambda total: cuda.atomic.add(total, 0, slowly(1)))
    double = cuda.vectorize(["float64(float64)"])(named(lambda a: slowly(2 * a)))
    counts = [functools.partial(count[2, 4], totals[i:]) for i in range(3)]
    launches = [*counts, lambda: list(double(np.arange(3.0)))]

    def meanwhile(launch):
        assert inside.wait(10)
        with pytest.raises(RuntimeError, match="only inside a kernel"):
            cuda.grid(1)
        return launch()

    for first in launches[::3]:
        inside.clear()
        with ThreadPoolExecutor() as pool:
            futures = pool.submit(first), *(pool.submit(meanwhile, launch) for launch in launches)
        assert [future.result() for future in futures][1:] == [None, None, None, [0, 2, 4]]
    assert list(totals) == [24, 16, 16]


def check_cuda_is_found_in_a_closure_and_by_imported_names_and_two_arrays_on_one_line_are_two():
    from numba import cuda as c
    from numba.cuda import atomic, grid, shared, syncthreads, threadIdx

    @c.jit
    def kernel(x):
        s, other = shared.array(4, c.float32), shared.array(4, c.float32, alignment=16)
        s[threadIdx.x], other[threadIdx.x] = threadIdx.x, 7
        syncthreads()
        atomic.add(x, 0, s[3 - c.threadIdx.x])
        if grid(1) == 0:
            x[1] = c.laneid + c.warpsize

    x = np.zeros(2)
    kernel[1, 4](x)
    np.testing.assert_array_equal(x, [6, 32])
    with pytest.raises(RuntimeError, match=r"cuda\.grid means something only inside a kernel"):
        grid(1)


def check_an_exception_that_takes_two_arguments_is_not_lost():
    @cuda.jit
    def kernel(x):
        b"\xff".decode("ascii")

    with pytest.raises(RuntimeError, match=r"tid=\[0, 0, 0\].*UnicodeDecodeError"):
        kernel[1, 1](np.zeros(1))


def check_an_exception_in_one_thread_ends_the_others_that_wait_at_a_barrier():
    ended = []

    @cuda.jit
    def kernel(x):
        try:
            cuda.syncthreads()
            x[cuda.threadIdx.x + 2] = 1
        finally:
            ended.append(cuda.threadIdx.x)

    with pytest.raises(IndexError, match=r"tid=\[[12], 0, 0\] ctaid=\[0, 0, 0\]: "):
        kernel[1, 3](np.zeros(3))
    assert sorted(ended) == [0, 1, 2]


def check_a_kernel_that_is_launched_twice_in_each_call_has_both_orders_in_both_places():
    @cuda.jit
    def kernel(x):
        x[cuda.threadIdx.x] = order.append(cuda.threadIdx.x) or 0

    first, second = [], []
    for _ in range(2):
        for orders in (first, second):
            order = []
            kernel[1, 2](np.zeros(2))
            orders.append(tuple(order))
    assert set(first) == set(second) == {(0, 1), (1, 0)}


def check_blocks_run_in_both_orders_in_grids_of_each_shape():
    @cuda.jit
    def kernel(x):
        places.append(tuple(cuda.blockIdx))
        x[0] = 0

    for grid in ((3,), (2, 3), (2, 1, 3)):
        orders = []
        for _ in range(2):
            places = []
            kernel[grid, 1](np.zeros(1))
            orders.append(places)
        assert sorted(places) == list(np.ndindex(grid + (1,) * (3 - len(grid))))
        assert orders[0] == orders[1][::-1]


def check_threads_that_wait_in_a_loop_for_a_thread_or_a_block_go_on_in_both_orders():
    @cuda.jit
    def sum_up(x, sums, flags):
        block, shared = cuda.blockIdx.x, cuda.shared.array(2, np.int64)
        shared[cuda.threadIdx.x] = x[cuda.grid(1)]
        if cuda.threadIdx.x == 0:
            while flags[block] == 0:  # which the other thread sets
                cuda.threadfence()
            while block > 0 and cuda.atomic.add(flags, block - 1, 0) < 2:
                pass
            before = sums[block - 1] if block > 0 else 0
            sums[block] = before + shared[0] + shared[1]
        cuda.atomic.add(flags, block, 1)
        cuda.syncthreads()
        shared[0] = 0

    for _ in range(2):
        sums, flags = np.zeros((2, 5), np.int64)
        sum_up[5, 2](np.arange(10), sums, flags)
        assert sums.tolist() == [1, 6, 15, 28, 45]


def check_an_error_ends_the_blocks_that_wait():
    ended = []

    @cuda.jit
    def kernel(flags):
        try:
            while flags[0] == 0:
                if cuda.grid(1) == 5:
                    raise ValueError("no")
        finally:
            ended.append(cuda.grid(1))

    for _ in range(2):
        ended.clear()
        with pytest.raises(ValueError, match=r"tid=\[1, 0, 0\] ctaid=\[2, 0, 0\]: no"):
            kernel[4, 2](np.zeros(1))
        assert ended[0] == 5
        assert sorted(ended) in ([0, 1, 2, 3, 4, 5], [5, 6, 7]), ended


def check_a_kernel_in_debug_raises_where_it_divides_by_zero_and_leaves_the_host_as_it_was():
    @cuda.jit(debug=True, opt=False)
    def kernel(x):
        cuda.syncthreads()
        x[cuda.threadIdx.x] = x[cuda.threadIdx.x] / np.float64(0)

    before = np.geterr()
    with pytest.raises(FloatingPointError, match="divide by zero"):
        kernel[1, 4](np.ones(4))
    assert np.geterr() == before


def check_threads_that_wait_and_threads_that_ended_do_not_hold_each_other_up():
    @cuda.jit
    def kernel(y):
        i = cuda.grid(1)
        if i % 2:
            return
        cuda.syncthreads()
        y[i] = cuda.syncthreads_count(i < 4)

    y = np.zeros(8)
    kernel[1, 8](y)
    assert list(y) == [2, 0, 2, 0, 2, 0, 2, 0]


# --- events, streams, device, arrays --------------------------------------------------------------


def check_events_tell_the_hosts_time_in_milliseconds():
    start, end = cuda.event(timing=True), cuda.event()
    start.record(cuda.stream())
    time.sleep(0.02)
    end.record()
    end.synchronize()
    end.wait(0)
    assert end.query() is True
    assert 19 < cuda.event_elapsed_time(start, end) < 2000
    assert start.elapsed_time(end) == -cuda.event_elapsed_time(end, start)


def check_the_device_has_what_users_read():
    device = cuda.get_current_device()
    assert (device.name, device.WARP_SIZE, device.MAX_THREADS_PER_BLOCK) == ("SIMULATOR", 32, 1024)
    assert cuda.gpus[0].name == cuda.select_device(0).name == "SIMULATOR"
    assert device.MULTIPROCESSOR_COUNT == 1
    assert device.compute_capability == Device.simulated().compute_capability
    with pytest.raises(AttributeError):
        _ = device.NO_SUCH_ATTRIBUTE
    from numba.cuda.cudadrv.error import CudaDriverError, CudaSupportError

    assert issubclass(CudaDriverError, Exception)
    assert cuda.CudaSupportError is CudaSupportError


def check_streams_and_profiling_have_the_real_methods():
    async def wait():
        await stream.async_done()

    stream, calls = cuda.external_stream(4711), []
    stream.add_callback(lambda stream, status, arg: calls.append((status, arg)), 5)
    with cuda.profiling(), stream.auto_synchronize(), cuda.pinned(np.zeros(2), np.zeros(3)):
        asyncio.run(wait())
    assert calls == [(0, 5)]
    assert cuda.profile_start() is cuda.profile_stop() is cuda.current_context().synchronize() is None


def check_host_and_kernels_share_mapped_and_managed_memory():
    @cuda.jit
    def shift(x, y):
        x[0] = 5
        y[0] = x[0] + 1

    managed = cuda.managed_array(3, np.float32, attach_global=False)
    like = cuda.mapped_array_like(np.zeros((4, 3), order="F"), portable=True)[:3, 0]
    with cuda.mapped(np.zeros(3)) as one, cuda.mapped(np.zeros(1), np.zeros(3), stream=0) as (_, other):
        for array in (managed, like, one, other, cuda.mapped_array((3,), stream=cuda.stream(), wc=True)):
            array[:] = 1
            shift[1, 1](array, array[1:])
            assert list(array) == list(cuda.as_cuda_array(array).copy_to_host()) == [5, 6, 1]


def check_functions_of_arrays_take_the_real_arguments_and_no_others():
    assert cuda.device_array((2, 3), np.int32, None, "F", cuda.stream()).is_f_contiguous()
    into = cuda.device_array(shape=3, strides=8, stream=0)
    assert cuda.to_device(np.arange(3.0), to=into, stream=cuda.stream()) is into
    assert cuda.to_device(np.zeros(3), copy=False, to=into) is cuda.to_device(into) is into
    assert list(into.copy_to_host()) == [0, 1, 2]
    for make in (cuda.device_array, cuda.mapped_array, cuda.managed_array):
        with pytest.raises(TypeError, match="dtpye"):
            make(3, dtpye="f4")


# --- shared memory --------------------------------------------------------------------------------


def check_dynamic_shared_memory_takes_numpy_and_numba_types():
    @cuda.jit
    def kernel(out):
        as_numpy = cuda.shared.array(0, np.float32)
        as_numba = cuda.shared.array(0, cuda.float32)
        as_numpy[cuda.threadIdx.x] = cuda.threadIdx.x
        cuda.syncthreads()
        out[cuda.threadIdx.x] = as_numba[as_numba.size - 1 - cuda.threadIdx.x]

    out = np.zeros(8)
    kernel[1, 8, 0, 32](out)
    np.testing.assert_array_equal(out, np.arange(8)[::-1])


def check_too_much_shared_memory_is_refused():
    @cuda.jit
    def kernel():
        cuda.shared.array((128, 128), np.float32)

    with pytest.raises(RuntimeError, match=r"uses too much shared data \(65536 bytes"):
        kernel[1, 1]()


# --- what cannot be simulated ---------------------------------------------------------------------


def check_what_cannot_be_simulated_is_refused_by_name_in_kernels():
    features = {
        "warp shuffles": "cuda.shfl_sync cuda.shfl_down_sync",
        "warp votes": "cuda.ballot_sync",
        "warp matches": "cuda.match_any_sync",
        "warp synchronisation": "cuda.syncwarp",
        "masks of active threads": "cuda.activemask",
        "sleeping threads": "cuda.nanosleep",
        "cache-hinted loads and stores": "cuda.ldcg",
        "counting and reversing bits": "cuda.popc cuda.clz cuda.brev cuda.ffs",
        "cooperative groups": "cuda.cg.this_grid",
        "fused multiply-add": "cuda.fma",
        "cube root": "cuda.cbrt",
        "half-precision intrinsics": "cuda.fp16.hfma",
    }
    for feature, names in features.items():
        for name in names.split():
            with pytest.raises(SimulatorUnsupported) as caught:
                one_thread(lambda: attrgetter(name.removeprefix("cuda."))(cuda)())  # noqa: B023 - called at once
            assert caught.value.feature == f"{feature} ({name})"
            where = "tid=[0, 0, 0] ctaid=[0, 0, 0]: not in the simulator: "
            assert str(caught.value) == f"{where}{feature} ({name})"
    with pytest.raises(AttributeError, match="no attribute 'shuffle'"):
        one_thread(lambda: cuda.shuffle(1))


def check_what_cannot_be_simulated_is_refused_by_imported_name_and_in_cores():
    from numba.cuda import libdevice, shfl_xor_sync
    from numba.cuda.bf16 import htrunc
    from numba.cuda.libdevice import cosf

    refused("cuda.shfl_xor_sync", lambda: one_thread(lambda: shfl_xor_sync(-1, 1, 1)))
    refused("libdevice.sqrt", lambda: one_thread(lambda: libdevice.sqrt(2.0)))
    core = cuda.vectorize(["float32(float32)"])(named(lambda a: cosf(a)))
    refused("libdevice.cosf", lambda: core(np.ones(1, "f4")))
    refused("bfloat16 (numba.cuda.bf16.htrunc)", lambda: one_thread(lambda: htrunc(1.0)))
    with pytest.raises(SimulatorUnsupported, match=r"numba\.cuda\.fp8"):
        from numba.cuda import fp8  # noqa: F401
    refused("cuda.compile_ptx", lambda: cuda.compile_ptx(abs, ()))
    refused("get_regs_per_thread", lambda: cuda.jit(lambda: None).get_regs_per_thread())


def check_every_public_name_of_the_real_module_is_there_and_what_it_cannot_do_is_refused():
    names = set()
    for file in ("api.py", "device_init.py"):
        for node in ast.parse(Path(cuda.__path__[0], file).read_text("utf-8")).body:
            imported = node.names if isinstance(node, ast.ImportFrom) and node.module != "numba.cuda" else []
            names |= {getattr(node, "name", "_"), *(alias.asname or alias.name for alias in imported)}
    assert names >= {"managed_array", "IpcHandle", "is_available", "shfl_sync"}
    assert [name for name in names if name[0] not in "_*" and not hasattr(cuda, name)] == []
    assert one_thread(lambda: sum(cuda.literal_unroll((1, 2)))) == 3
    refused("cuda.HostOnlyCUDAMemoryManager", type("Manager", (cuda.HostOnlyCUDAMemoryManager,), {}))
    refused("cuda.from_cuda_array_interface", lambda: cuda.from_cuda_array_interface({}))


# --- numba-cuda-mlir, which is not installed here ---------------------------------------------------


def check_kernels_of_numba_cuda_mlir_run_by_any_import():
    import numba_cuda_mlir
    import numba_cuda_mlir.cuda.vector_types as vectors
    import numba_cuda_mlir.numba_cuda.types as numba_types
    from numba_cuda_mlir import cuda as mlir
    from numba_cuda_mlir import types
    from numba_cuda_mlir.cuda import grid, shared_array

    assert numba_types is types is mlir.types
    assert numba_cuda_mlir.numba_cuda is mlir

    @mlir.jit(fast_math=True, opt_level=2)
    def kernel(x, out):
        first, second = shared_array(8, types.f32), shared_array(8, types.f32)
        third, fourth = mlir.shared.array(8, np.float32, alignas=16), mlir.shared_array(8, types.float32)
        own = mlir.local_array(2, types.i64)
        i = grid(1)
        first[i], second[i], third[i], fourth[i] = x[i], 2 * x[i], 3 * x[i], 4 * x[i]
        own[1] = vectors.float2(5, 6).y
        mlir.syncthreads()
        out[i] = first[7 - i] + second[7 - i] + third[7 - i] + fourth[7 - i] + own[1]

    x, out = np.arange(8, dtype="f4"), mlir.device_array(8, np.float32)
    for configuration in ((1, 8), (1, 8, None, None, None)):
        out[:] = 0
        kernel[configuration](x, out)
        np.testing.assert_array_equal(out.copy_to_host(), 10 * x[::-1] + 6)
    assert isinstance(out, mlir.DeviceNDArray)
    assert not isinstance(x, mlir.DeviceNDArray)


def check_both_numbas_work_in_one_process_and_each_has_its_own_rules():
    from numba_cuda_mlir import cuda as mlir

    @mlir.jit(device=True)
    def twice(x):
        return 2 * x

    @cuda.jit
    def kernel(x):
        x[cuda.grid(1)] = twice(x[mlir.grid(1)])

    x = mlir.to_device(np.arange(3.0))
    kernel[1, 3](x)
    assert x.copy_to_host().tolist() == [0, 2, 4]
    with pytest.raises(TypeError, match="fast_math"):
        cuda.jit(fast_math=True)
    with pytest.raises(ValueError, match="at least"):
        kernel[1, 3, 0, 0, (2, 1, 1)]
    assert cuda.vectorize(["float64(float64)"])(named(lambda a: a + 1))(np.ones(2)).tolist() == [2, 2]


def check_what_numba_cuda_mlir_refuses_is_refused_by_name():
    from numba.cuda.core.errors import TypingError
    from numba_cuda_mlir import cuda as mlir

    for make, kind, said in (
        (lambda: mlir.jit(boundscheck=True), ValueError, r"boundscheck=…\).* leave it out"),
        (lambda: mlir.jit("void()", bind=True), ValueError, r"bind=…\).* leave it out"),
        (lambda: mlir.jit(lauch_bounds=64), ValueError, "did you mean 'launch_bounds'"),
        (lambda: mlir.jit(opt=True, opt_level=3), ValueError, "give one of them"),
        (lambda: mlir.jit(debug=True), ValueError, "add opt=False"),
        (lambda: mlir.vectorize(["f4(f4)"]), NotImplementedError, r"has no cuda\.vectorize: write a kernel"),
        (
            lambda: mlir.guvectorize(["f4[:], f4[:]"], "(n)->(n)"),
            TypeError,
            r"has no cuda\.guvectorize: write",
        ),
    ):
        with pytest.raises(kind, match=said):
            make()
    states = mlir.random.create_xoroshiro128p_states(1, seed=1)
    draws = mlir.jit(lambda states: mlir.random.xoroshiro128p_uniform_float32(states, 0))
    with pytest.raises(TypingError, match=r"no cuda\.random\.xoroshiro128p_uniform_float32 for kernels"):
        draws[1, 1](states)
    for options in ({"debug": True, "opt": False}, {"debug": True, "opt_level": 0}):
        mlir.jit("void()", **options)(lambda: None)[1, 1]()


def check_what_only_numba_cuda_mlir_has_is_refused_by_name():
    import numba_cuda_mlir
    from numba_cuda_mlir import cuda as mlir
    from numba_cuda_mlir.cuda.experimental import consteval

    kernel = mlir.jit(lambda: None)
    refused("cuda.inline_ptx", lambda: one_thread(lambda: mlir.inline_ptx("exit;")))
    refused("cuda.experimental.consteval", lambda: one_thread(lambda: consteval(1)))
    refused("cuda.tensor_map.encode", lambda: mlir.tensor_map.encode())
    refused("cuda.intrin.define", lambda: mlir.intrin.define("x"))
    refused("cuda.half2", lambda: one_thread(lambda: mlir.half2(1, 2)))
    refused("numba_cuda_mlir.types.bf16", lambda: numba_cuda_mlir.types.bf16)
    refused("clusters", lambda: kernel[1, 1, 0, 0, (2, 1, 1)]())
    refused("clusters", lambda: kernel.configure(1, 1, cluster=2)())
    refused("inspect_mlir", kernel.inspect_mlir)
    refused("cuda.compile_cubin", lambda: mlir.compile_cubin(abs, ()))
    refused("linked with other code", lambda: mlir.jit(link=["a.cu"])(named(lambda: None))[1, 1]())
    with pytest.raises(SimulatorUnsupported, match=r"a part of the compiler \(numba_cuda_mlir\.extending\)"):
        from numba_cuda_mlir import extending  # noqa: F401
    with pytest.raises(
        SimulatorUnsupported, match=r"a feature of numba-cuda-mlir \(numba_cuda_mlir\.cuda\.fp16\)"
    ):
        import numba_cuda_mlir.cuda.fp16
    with pytest.raises(ImportError, match=r"numba_cuda_mlir\.models"):  # so that code can do without
        import numba_cuda_mlir.models
    assert not hasattr(mlir, "no_such_name") and not hasattr(mlir.types, "no_such_name")  # noqa: PT018
    for misspelt in ("numba_cuda_mlir import cudda", "numba_cuda_mlir.cuda import sharred_array"):
        with pytest.raises(ImportError, match=r"cannot import name '(cudda|sharred_array)'"):
            exec(f"from {misspelt}")
    assert importlib.util.find_spec("numba_cuda_mlir.cudda") is None


# --- the two processes ----------------------------------------------------------------------------

CHECKS = sorted(name for name in globals() if name.startswith("check_"))


@pytest.fixture(scope="module")
def outcomes():
    from test_simulator_switch import run  # which the child does not find

    return run(f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')")


@pytest.mark.parametrize("check", [name.removeprefix("check_") for name in CHECKS])
def test_in_the_mended_simulator(check, outcomes):
    assert outcomes[f"check_{check}"] is None, outcomes[f"check_{check}"]


def run_checks():
    global cuda, np
    activate(SimulatorState(True, "the tests of the simulator"))
    import numpy
    from numba import cuda as numba_cuda

    cuda, np = numba_cuda, numpy
    outcomes = {}
    for name in CHECKS:
        try:
            globals()[name]()
            outcomes[name] = None
        except BaseException:
            outcomes[name] = traceback.format_exc()
    return outcomes


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_checks()) + "\n")
