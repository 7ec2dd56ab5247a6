"""Holds the kernels that `gpukern selftest` times: five problems like any user's, and one that spins.

References are computed in the outputs' own precision, so that a self-test does not wait for its host. The
spinning kernel measures its own time with the device's global timer, which none of our timers uses.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays.compare import Tolerance
from pytest_gpukern.arrays.threaded import random_array
from pytest_gpukern.gpu.runtime import DeviceArray, cuda_source
from pytest_gpukern.problems.axes import Axis
from pytest_gpukern.problems.call_by_name import call_by_name
from pytest_gpukern.problems.cases import cases_of
from pytest_gpukern.problems.problem import Problem
from pytest_gpukern.selftest.recording import Spin
from pytest_gpukern.timers.timer import Iteration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpukern.gpu.runtime import CudaRuntime
    from pytest_gpukern.problems.cases import Case
    from pytest_gpukern.timers.timer import Timer


EXP_SIZES = {"exp 64 K f32": 65_536, "exp 10 M f32": 10_000_000, "exp 100 M f32": 100_000_000}
ADD, ADD_SIZE = "add 32 M f64", 32_000_000
SGEMM, SGEMM_SIZE = "sgemm 2048", 2048
_BLOCK = 256


def _exp_problem() -> Problem:
    import numpy as np

    problem = Problem(
        "selftest_exp",
        version=1,
        axes={"n": Axis(smoke=(1024,), full=tuple(EXP_SIZES.values()))},
        make_inputs=lambda rng, n: {"x": random_array(rng, n, "float32", distribution="normal")},
        outputs=lambda n: {"y": ((n,), "float32")},
        reference=lambda x: np.exp(x),
        tolerance=Tolerance(rtol=8 * 2.0**-23),  # 2 ULP of CUDA's expf, under 3 of NumPy's
        traffic_bytes=lambda n: 8 * n,
    )

    @problem.variant("cupy")
    def exp(x: Any, y: Any) -> Callable[[], Any]:
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
        axes={"n": Axis(smoke=(1024,), full=(ADD_SIZE,))},
        make_inputs=lambda rng, n: {"a": random_array(rng, n, "float64")},
        outputs=lambda n: {"out": ((n,), "float64")},
        reference=lambda a: a + 2.0,
        tolerance=Tolerance(),
        traffic_bytes=lambda n: 16 * n,
    )

    @problem.variant("numba")
    def add(a: Any, out: Any, n: int, stream: Any) -> Callable[[], Any]:
        kernel = _add_kernel()
        grid = -(-n // _BLOCK)
        return lambda: kernel[grid, _BLOCK, stream](a, out)

    return problem


def _sgemm_problem() -> Problem:
    problem = Problem(
        "selftest_sgemm",
        version=1,
        axes={"n": Axis(smoke=(32,), full=(SGEMM_SIZE,))},
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

    @problem.variant("cupy")
    def cublas(A: Any, B: Any, C: Any) -> Callable[[], Any]:
        import cupy

        return lambda: cupy.matmul(A, B, out=C)

    return problem


def selftest_cases() -> dict[str, Case]:
    """Returns the name of each kernel with its case, in the order of the table."""
    cases: dict[str, Case] = {}
    for case in cases_of(_exp_problem(), "full"):
        name = next(name for name, n in EXP_SIZES.items() if n == case.point["n"])
        cases[name] = case
    (cases[ADD],) = cases_of(_add_problem(), "full")
    (cases[SGEMM],) = cases_of(_sgemm_problem(), "full")
    return cases


def launch_elsewhere(case: Case, arrays: Mapping[str, Any], handle: int = 0) -> Callable[[], Any]:
    """Returns the launch that is timed, on another tool's stream.

    Args:
        case: of `selftest_cases`.
        arrays: of the workspace that it was prepared in.
        handle: of the stream; 0 is the legacy default one, which CuPy and PyTorch launch on.
    """
    assert case.variant.prepare is not None
    stream: Any = None
    if case.variant.backend == "numba":
        from numba import cuda

        stream = cuda.external_stream(handle) if handle else cuda.default_stream()
    launch: Callable[[], Any] = call_by_name(
        case.variant.prepare, {**case.point, **case.parameters, **arrays, "stream": stream}
    )
    if case.variant.backend == "numba" or not handle:
        return launch
    import cupy
    from cuda.core import Stream

    others = cupy.cuda.Stream.from_external(Stream.from_handle(handle))

    def on_stream() -> None:
        with others:
            launch()

    return on_stream


_SLOTS = 64


class SpinningKernel:
    """Spins one thread on %globaltimer, and writes out its last reading less its first.

    Its own time lacks what the device does before the first and after the last reading: it starts the block,
    stores the result and ends. Compare differences between two spins instead.

    Args:
        runtime: context and stream of the pinned device.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        import numpy as np

        self._runtime = runtime
        self._kernel = runtime.kernel(cuda_source("selftest_spin.cu"), "gpukern_spin")
        self._own = DeviceArray((_SLOTS,), np.uint64)
        self._seen: set[int] = set()
        self.call(0)()  # loaded and run once before anything can be blocked
        runtime.synchronize()

    def call(self, ns: float, slot: int = 0) -> Callable[[], Any]:
        """Launches the kernel on the runtime's stream; its own time goes to `slot`, from 0 to 63."""
        import numpy as np
        from cuda.core import LaunchConfig, launch

        stream, kernel, config = self._runtime.stream, self._kernel, LaunchConfig(grid=1, block=1)
        arguments = (np.uint64(ns), self._own.pointer + 8 * slot)
        return lambda: launch(stream, config, kernel, *arguments)

    def read(self, timer: Timer, ns: float, count: int) -> Spin:
        """Times `count` spins with a hot cache.

        Args:
            timer: on the runtime's stream.
            ns: how long to spin.
            count: samples, up to 64.

        Raises:
            ValueError: too many samples.
            TimerUnavailable: the timer cannot time them.
        """
        if not 1 <= count <= _SLOTS:
            raise ValueError(f"1 to {_SLOTS} samples are possible, got {count}")
        iterations = [Iteration(self.call(ns, slot), launches=1) for slot in range(count)]
        samples = timer.collect(iterations, cold=False).samples_ns
        own = [int(value) for value in self._own.download()[:count]]
        self._seen.update(own)
        return Spin(
            asked_ns=ns,
            timer=timer.name,
            own_ns=statistics.median(own),
            reading_ns=statistics.median(samples),
            beyond_ns=statistics.median(sample - true for sample, true in zip(samples, own, strict=True)),
        )

    @property
    def step_ns(self) -> float | None:
        """Returns the smallest difference seen between two of the kernels' own times, or None."""
        steps = [later - earlier for earlier, later in itertools.pairwise(sorted(self._seen))]
        return float(min(steps)) if steps else None

    def free(self) -> None:
        """Gives the memory of the kernels' own times back."""
        self._own.free()
