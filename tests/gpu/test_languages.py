"""Runs a right and a wrong kernel of each language of the page "Your language" that this machine has."""

import fnmatch
import re
import shutil
import sys
from importlib.metadata import version

import pytest

from pytest_gpukern.values.backend_table import installed

N = 1 << 14
COMMON = f'''
import functools
import numpy as np
import pytest

N = {N}
host = np.random.default_rng(0).random(N, dtype=np.float32) + 1
SOURCE = """extern "C" __global__ void kernel(const float* x, float* out, int n) {{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}}"""
def launched(kernel):
    return lambda x, out, n: kernel((N // 256,), (256,), (x, out, np.int32(n)))
def copied(double):
    def twice(x, out, n):
        out[:n] = double(x[:n])
    return twice
'''
ARRAYS = {
    "cupy": "import cupy\narray = cupy.asarray\n",
    "torch": "import torch\narray = lambda host: torch.as_tensor(host, device='cuda')\n",
    "pycuda": "import pycuda.autoprimaryctx\nfrom pycuda import gpuarray\narray = gpuarray.to_gpu\n",
    "jax_cuda13_plugin": "import jax\nfrom jax import numpy as jnp\narray = jnp.asarray\n",
}
KERNELS = r"""
# Numba | numba-cuda | numba.cuda | out
from numba import cuda
array = cuda.to_device
@cuda.jit
def kernel(x, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i] + x[i]
twice = lambda x, out, n: kernel[N // 256, 256](x, out, n)
# CuPy RawKernel | cupy-cuda13x | cupy | out
twice = launched(cupy.RawKernel(SOURCE, "kernel"))
# CuPy RawModule | cupy-cuda13x | cupy | out
twice = launched(lambda *how: cupy.RawModule(code=SOURCE).get_function("kernel")(*how))
# CuPy jit.rawkernel | cupy-cuda13x | cupy | out
from cupyx import jit
@jit.rawkernel()
def kernel(x, out, n):
    i = jit.grid(1)
    if i < n:
        out[i] = x[i] + x[i]
twice = launched(kernel)
# CuPy ElementwiseKernel | cupy-cuda13x | cupy | out
kernel = cupy.ElementwiseKernel("T x", "T out", "out = x + x", "kernel")
twice = lambda x, out, n: kernel(x[:n], out[:n])
# CuPy ReductionKernel | cupy-cuda13x | cupy | out
kernel = cupy.ReductionKernel("T x", "T out", "x + x", "a + b", "out = a", "0", "kernel")
twice = lambda x, out, n: kernel(x[:n, None], axis=1, out=out[:n])
# CuPy fuse | cupy-cuda13x | cupy | out
@cupy.fuse()
def doubled(x):
    return x + x
twice = copied(doubled)
# PyCUDA | pycuda | pycuda | out
from pycuda.compiler import SourceModule
compiled = functools.cache(lambda: SourceModule(SOURCE, no_extern_c=True).get_function("kernel"))
twice = lambda x, out, n: compiled()(x, out, np.int32(n), grid=(N // 256, 1), block=(256, 1, 1))
# scikit-cuda | scikit-cuda | pycuda skcuda mako | out
from skcuda import cublas, misc
def twice(x, out, n):
    misc.init()  # once
    cublas.cublasScopy(misc._global_cublas_handle, n, x.gpudata, 1, out.gpudata, 1)
    cublas.cublasSaxpy(misc._global_cublas_handle, n, 1.0, x.gpudata, 1, out.gpudata, 1)
# Triton | triton | torch triton | out
import triton
from triton import language as tl
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, value + value, mask=at < n)
twice = lambda x, out, n: kernel[(N // 256,)](x, out, n, BLOCK=256)
# Gluon | triton | torch triton | out
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
@gluon.jit
def kernel(x, out, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    value = gl.load(x + at, mask=at < n)
    gl.store(out + at, value + value, mask=at < n)
twice = lambda x, out, n: kernel[(N // 256,)](x, out, n, BLOCK=256)
# PyTorch | torch | torch | out
twice = lambda x, out, n: torch.add(x[:n], x[:n], out=out[:n])
# PyTorch custom_op | torch | torch | out
@torch.library.custom_op("languages::twice", mutates_args=("out",))
def twice(x: torch.Tensor, out: torch.Tensor, n: int) -> None:
    torch.add(x[:n], x[:n], out=out[:n])
# PyTorch compile | torch | torch triton | out
twice = copied(torch.compile(lambda x: x + x))
# PyTorch load_inline | torch | torch NVCC NINJA | out
from torch.utils.cpp_extension import load_inline
HEADER = "void twice(torch::Tensor x, torch::Tensor out, int n)"
CALL = HEADER + "{ kernel<<<64, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n); }"
compiled = functools.cache(lambda: load_inline("extension", HEADER + ";", SOURCE + CALL, functions=["twice"]))
twice = lambda x, out, n: compiled().twice(x, out, n)
# JAX | jax | jax_cuda13_plugin | returned
twice = jax.jit(lambda x, n: (x + x).at[n:].set(0), static_argnums=1)
# Pallas | jax | jax_cuda13_plugin | returned
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
@functools.partial(jax.jit, static_argnums=1)
def twice(x, n):
    def kernel(x, out):
        at = pl.program_id(0) * 1024 + jnp.arange(1024)
        out[...] = jnp.where(at < n, x[...] + x[...], 0)
    block, made = pl.BlockSpec((1024,), lambda i: (i,)), jax.ShapeDtypeStruct(x.shape, x.dtype)
    how = {"in_specs": [block], "out_specs": block, "compiler_params": triton.CompilerParams()}
    return pl.pallas_call(kernel, made, grid=N // 1024, **how)(x)
# Helion | helion | torch helion | out
import helion
import helion.language as hl
@helion.kernel(config=helion.Config(block_sizes=[256]))
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + x[tile]
    return out
twice = copied(double)
# cuda.core | cuda-core | cupy cuda.core | out
from cuda import core
@functools.cache
def compiled():
    (device := core.Device()).set_current()
    program = core.Program(SOURCE, "c++", core.ProgramOptions(arch=f"sm_{device.arch}"))
    shape, kernel = core.LaunchConfig(grid=64, block=256), program.compile("cubin").get_kernel("kernel")
    return functools.partial(core.launch, device.default_stream, shape, kernel)
twice = lambda x, out, n: compiled()(x.data.ptr, out.data.ptr, np.int32(n))
# cuda.compute | cuda-cccl | cupy cuda.compute | out
from cuda import compute
def twice(x, out, n):
    compute.binary_transform(d_in1=x, d_in2=x, d_out=out, op=compute.OpKind.PLUS, num_items=n)
# nvmath | nvmath-python | cupy nvmath | out
import nvmath
def twice(x, out, n):
    square = nvmath.linalg.advanced.matmul(x.reshape(128, 128), 2 * cupy.eye(128, dtype="float32"))
    out[:n] = square.ravel()[:n]
# Warp | warp-lang | warp | out
import warp as wp
array = lambda host: wp.array(host, device="cuda")
@wp.kernel
def kernel(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] + x[i]
twice = lambda x, out, n: wp.launch(kernel, dim=n, inputs=[x], outputs=[out], device="cuda")
# CuTe DSL | nvidia-cutlass-dsl | torch cutlass | out
import cutlass
from cutlass import cute
from cutlass.cute.runtime import from_dlpack
@cute.kernel
def kernel(x: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
    if i < n:
        out[i] = x[i] + x[i]
@cute.jit
def launch(x: cute.Tensor, out: cute.Tensor, n: cutlass.Int32):
    kernel(x, out, n).launch(grid=(64, 1, 1), block=(256, 1, 1))
compiled = functools.cache(lambda: cute.compile(launch, *2 * [from_dlpack(array(host))], cutlass.Int32(1)))
twice = lambda x, out, n: compiled()(from_dlpack(x), from_dlpack(out), cutlass.Int32(n))
# tilelang | tilelang | torch tilelang NVCC | out
import tilelang
import tilelang.language as T
@functools.cache
@tilelang.jit
def compiled(size, n):
    @T.prim_func
    def kernel(x: T.Tensor((size,), "float32"), out: T.Tensor((size,), "float32")):
        with T.Kernel(size // 256, threads=256) as block:
            for i in T.Parallel(256):
                if block * 256 + i < n:
                    out[block * 256 + i] = 2 * x[block * 256 + i]
    return kernel
twice = lambda x, out, n: compiled(N, n)(x, out)
"""
"""Of each language: name, distribution, what it needs (programs in capitals), how it hands its result over.

Then `array(host)`, if `ARRAYS` lacks it, and `twice`, which computes the first `n` elements.
"""
LANGUAGES = {
    name: row for name, *row in re.findall(r"# (.+) \| (.+) \| (.+) \| (.+)\n((?:[^#].*\n)+)", KERNELS)
}
MLIR = "numba-cuda-mlir"
LANGUAGES[MLIR] = [MLIR, "numba_cuda_mlir", "out", LANGUAGES["Numba"][-1].replace("numba", "numba_cuda_mlir")]
TESTS = {
    "out": """
@pytest.mark.gpu_benchmark(outputs="out")
@pytest.mark.parametrize("n", [N, N - 1])
def test_twice(gpu_benchmark, n):
    x, out = array(host), array(np.zeros_like(host))
    gpu_benchmark(lambda x, out: twice(x, out, n), x, out)
    gpu_benchmark.verify(out, 2 * host)
""",
    "returned": """
@pytest.mark.parametrize("n", [N, N - 1])
def test_twice(gpu_benchmark, n):
    gpu_benchmark.verify(gpu_benchmark(lambda x: twice(x, n), array(host)), 2 * host)
""",
}
FAULTS = {
    "out": f"*out: 1 of {N} elements still hold poison, the first at [[]{N - 1}]*",
    "returned": f"*wrong values: 1 of {N} elements *first mismatch at [[]{N - 1}]*",
}
WITHOUT_HASHES = {"PyTorch compile"}
"""Of none of its kernels do we know the code."""


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_right_kernel_is_timed_and_one_that_leaves_out_the_last_element_rejected(measured, name):
    distribution, needs, handed, source = LANGUAGES[name]
    for needed in ("cupti", *needs.split()):
        if not (shutil.which(needed.lower()) if needed.isupper() else installed(needed)):
            pytest.skip(f"{needed.lower()} is not installed")
    arrays = ARRAYS.get(needs.split()[0], "")
    done, results = measured(COMMON + arrays + source + TESTS[handed], "--gpukern-baseline=off")
    assert len(results) == 2, done.stdout.str()
    right, wrong = results
    assert (right["correctness"], wrong["correctness"]) == ("PASSED", "INCORRECT"), done.stdout.str()
    assert fnmatch.fnmatchcase(wrong["diagnosis"], FAULTS[handed])
    (time,) = right["measurements"]
    hashes = [kernel["machine_code_sha256"] for kernel in right["kernels"]]
    known = f"{len(hashes) - hashes.count(None)} of {len(hashes)} kernels have hashes"
    # -rP shows it, for the page's table
    sys.stdout.write(f"{name}: {distribution} {version(distribution)}, {time['timer']}, {known}\n")
    assert (time["timer"], time["invalid"]) == ("cupti", None)
    assert hashes
    assert (None in hashes) == (name in WITHOUT_HASHES)
