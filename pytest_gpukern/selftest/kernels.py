"""Holds the kernels that `gpukern selftest` times: five that do work like any user's, and one that spins.

References are computed in the outputs' own precision, so that a self-test does not wait for its host. The
spinning kernel measures its own time with the device's global timer, which none of our timers uses.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

from pytest_gpukern.arrays.compare import Tolerance
from pytest_gpukern.arrays.threaded import random_array
from pytest_gpukern.gpu.runtime import CudaRuntime, DeviceArray, cuda_source
from pytest_gpukern.problems.axes import Axis
from pytest_gpukern.problems.cases import Case, cases_of
from pytest_gpukern.problems.problem import Problem
from pytest_gpukern.selftest.known_times import Spin
from pytest_gpukern.timers.timer import Iteration, Timer
from pytest_gpukern.values.result import CaseInfo

SIZES = {
    "exp 64 K f32": 65_536,
    "exp 10 M f32": 10_000_000,
    "exp 100 M f32": 100_000_000,
    "add 32 M f64": 32_000_000,
    "sgemm 2048": 2048,
}
"""Kernel, by its problem's name and its size, → that size."""
GRAPH = "graph"
WAYS = ("cold", "hot", GRAPH)
"""How a kernel is timed: by the default timers with either cache, or in graphs with a hot one."""
_BLOCK = 256


def name_of(case: Case | CaseInfo) -> str:
    """Returns the name of a kernel, such as `exp 64 K f32`."""
    problem = case.problem if isinstance(case.problem, str) else case.problem.name
    return next(
        name
        for name, size in SIZES.items()
        if size == case.point["n"] and name.startswith(problem.removeprefix("selftest_"))
    )


def _axis(kernel: str) -> Axis:
    sizes = tuple(size for name, size in SIZES.items() if name.startswith(kernel))
    return Axis(smoke=(32,), full=sizes)


def _exp_problem() -> Problem:
    import numpy as np

    problem = Problem(
        "selftest_exp",
        version=1,
        axes={"n": _axis("exp")},
        make_inputs=lambda rng, n: {"x": random_array(rng, n, "float32", distribution="normal")},
        outputs=lambda n: {"y": ((n,), "float32")},
        reference=lambda x: np.exp(x),
        tolerance=Tolerance(rtol=8 * 2.0**-23),  # 2 ULP of CUDA's expf, under 3 of NumPy's
        traffic_bytes=lambda n: 8 * n,
    )

    @problem.variant("cupy", way=WAYS)
    def exp(x: Any, y: Any, way: str) -> Callable[[], Any]:  # noqa: ARG001 - its mark heeds it
        import cupy

        return lambda: cupy.exp(x, out=y)

    return problem


@functools.cache
def _add_kernel() -> Any:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator, unused-ignore]
    def add(a: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < a.size:
            out[i] = a[i] + 2.0

    return add


def _add_problem() -> Problem:
    problem = Problem(
        "selftest_add",
        version=1,
        axes={"n": _axis("add")},
        make_inputs=lambda rng, n: {"a": random_array(rng, n, "float64")},
        outputs=lambda n: {"out": ((n,), "float64")},
        reference=lambda a: a + 2.0,
        tolerance=Tolerance(),
        traffic_bytes=lambda n: 16 * n,
    )

    @problem.variant("numba", way=WAYS)
    def add(a: Any, out: Any, n: int, stream: Any, way: str) -> Callable[[], Any]:  # noqa: ARG001
        kernel = _add_kernel()
        grid = -(-n // _BLOCK)
        return lambda: kernel[grid, _BLOCK, stream](a, out)

    return problem


def _sgemm_problem() -> Problem:
    problem = Problem(
        "selftest_sgemm",
        version=1,
        axes={"n": _axis("sgemm")},
        make_inputs=lambda rng, n: {
            "A": random_array(rng, (n, n), "float32"),
            "B": random_array(rng, (n, n), "float32"),
        },
        outputs=lambda n: {"C": ((n, n), "float32")},
        reference=lambda A, B: A @ B,
        # Sums of 2048 positive products, each side rounding in an order of its own.
        tolerance=Tolerance(rtol=2048 * 2.0**-24),
        flops=lambda n: 2.0 * n**3,
    )

    @problem.variant("cupy", way=tuple(way for way in WAYS if way != GRAPH))  # cuBLAS refuses capture
    def cublas(A: Any, B: Any, C: Any, way: str) -> Callable[[], Any]:  # noqa: ARG001
        import cupy

        return lambda: cupy.matmul(A, B, out=C)

    return problem


def selftest_cases() -> list[Case]:
    problems = (_exp_problem(), _add_problem(), _sgemm_problem())
    return [case for problem in problems for case in cases_of(problem, "full")]


_SLOTS = 64


class SpinningKernel:
    """Spins one thread on %globaltimer, and writes out its last reading less its first.

    Its own time lacks what the device does before the first and after the last reading: it starts the block,
    stores the result and ends. Compare differences between two spins instead.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        import numpy as np

        self._runtime = runtime
        self._kernel = runtime.kernel(cuda_source("selftest_spin.cu"), "gpukern_spin")
        self._own = DeviceArray((_SLOTS,), np.uint64)
        self.call(0)()  # loaded and run once before anything can be blocked
        runtime.synchronize()

    def call(self, ns: float, slot: int = 0, stream: Any = None) -> Callable[[], Any]:
        """Returns a launch that spins for `ns` on a cuda.core stream; `slot` (0 to 63) keeps its own time."""
        import numpy as np
        from cuda.core import LaunchConfig, launch

        stream, config = stream or self._runtime.stream, LaunchConfig(grid=1, block=1)
        arguments = (self._kernel, np.uint64(ns), self._own.pointer + 8 * slot)
        return lambda: launch(stream, config, *arguments)

    def own_ns(self) -> float:
        """Returns the own time that the last launch with slot 0 has left; the device must be idle."""
        return float(self._own.download()[0])

    def read(self, timer: Timer, ns: float, count: int) -> Spin:
        """Times up to 64 hot spins, by a timer on the runtime's stream; may raise TimerUnavailable."""
        iterations = [Iteration(self.call(ns, slot), launches=1) for slot in range(count)]
        samples = timer.collect(iterations, cold=False).samples_ns
        own = [int(value) for value in self._own.download()[:count]]
        return Spin(
            asked_ns=ns,
            timer=timer.name,
            own_ns=statistics.median(own),
            reading_ns=statistics.median(samples),
            beyond_ns=statistics.median(sample - true for sample, true in zip(samples, own, strict=True)),
        )

    def free(self) -> None:
        self._own.free()
