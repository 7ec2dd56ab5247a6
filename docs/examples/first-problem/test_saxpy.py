import numpy as np
from numba import cuda

from pytest_gpukern import Axis, Problem, Tolerance, boundaries, random_array

saxpy = Problem(
    "saxpy",
    version=1,
    axes={"n": Axis(smoke=(257,), full=(10**7,))},
    make_inputs=lambda rng, n: {"x": random_array(rng, n, "float32"), "y": random_array(rng, n, "float32")},
    outputs=lambda n: {"out": (n, "float32")},
    reference=lambda x, y: 2.0 * x.astype("float64") + y,
    tolerance=Tolerance(rtol=1e-6),
    traffic_bytes=lambda n: 12 * n,
    check_points=lambda block=256: [{"n": n} for n in boundaries(block, minimum=1)],
    speedup_against="host.numpy",
)


@cuda.jit
def kernel(a, x, y, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = a * x[i] + y[i]


@saxpy.variant("numba", block=(128, 256))
def grid_stride(x, y, out, n, stream, block):
    blocks = min(1024, -(-n // block))
    return lambda: kernel[blocks, block, stream](2.0, x, y, out)


@saxpy.variant("host")
def numpy(x, y, out):
    return lambda: np.add(np.multiply(x, 2, out=out), y, out=out)


@saxpy.cases
def test_saxpy(gpu_benchmark, case):
    gpu_benchmark.run(case)
