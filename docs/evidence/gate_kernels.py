"""Holds the kernels that `gate_on_gpu.py` measures: their cases, launches and checks.

The work of a planted case is exactly (1 + share) times that of its base: more trips through the same loop, or
more elements. Data are made on the device and checked there, so that a session begins within a second. All
values are whole numbers that their types can hold, so no result is rounded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.gpu.runtime import DeviceArray, checked, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PLANTED_SHARES = (0.005, 0.01, 0.02, 0.05)
BLOCK = 256
FMA_BLOCK = 1024
FMA_CHAINS = 4
FMA_UNROLLED = 8
BINS = 256
_MI = 1 << 20
_CHAIN = 1 << 20
"""Links of the chain, 4 MiB: more than an L1 holds, less than an L2."""
_BLOCKS_PER_SM = 8
_LARGEST_FACTOR = 4
"""Entries of the matrices are 0 to 3, so that sums of up to a million products are whole floats."""


@dataclass(frozen=True)
class GateCase:
    """Holds one kernel at one size under one cache policy.

    Attributes:
        kernel: which: `nothing`, `scale`, `add`, `copy`, `driver copy`, `sum`, `histogram`, `transpose`,
            `gemm`, `fma` or `chase`.
        size: elements, bytes of a copy, rows of a matrix, trips of a loop or steps of a chain.
        base: the id of the case that this one does more work than; empty for an unchanged case.
        share: of additional work, 0.01 for 1 %, of `PLANTED_SHARES`.
    """

    id: str
    kernel: str
    size: int
    cache: str
    base: str = ""
    share: float = 0.0


_UNCHANGED = (
    ("empty launch", "nothing", 1, "cold hot"),
    ("scale 64 K f32", "scale", 65_536, "cold hot"),
    ("scale 1 M f32", "scale", 1_000_000, "cold hot"),
    ("scale 10 M f32", "scale", 10_000_000, "cold hot"),
    ("scale 100 M f32", "scale", 100_000_000, "cold"),
    ("copy 1 MiB", "copy", _MI, "cold"),
    ("copy 16 MiB", "copy", 16 * _MI, "cold hot"),
    ("copy 256 MiB", "copy", 256 * _MI, "cold"),
    ("driver's copy 64 MiB", "driver copy", 64 * _MI, "cold"),
    ("sum 1 M u32", "sum", 1_000_000, "cold hot"),
    ("sum 32 M u32", "sum", 32_000_000, "cold"),
    ("histogram 10 M u32", "histogram", 10_000_000, "cold"),
    ("transpose 4096 f32", "transpose", 4096, "cold"),
    ("gemm 256 f32", "gemm", 256, "cold hot"),
    ("gemm 1024 f32", "gemm", 1024, "cold"),
    ("gemm 2048 f32", "gemm", 2048, "cold"),
    ("chase 256 steps", "chase", 256, "cold hot"),
    ("fma 400 trips", "fma", 400, "hot"),
)
_BASES = (
    ("fma 9600 trips", "fma", 9_600),
    ("add 32 M f64", "add", 32_000_000),
    ("fma 400 trips", "fma", 400),
)
"""Compute-bound for 1.2 ms, memory-bound for 130 µs, compute-bound for 50 µs on an H200; cold."""


def gate_cases() -> tuple[GateCase, ...]:
    """Returns all cases: unchanged ones, then each base followed by its planted cases."""
    found = [
        GateCase(f"{name}, {cache}", kernel, size, cache)
        for name, kernel, size, caches in _UNCHANGED
        for cache in caches.split()
    ]
    for name, kernel, size in _BASES:
        base = GateCase(f"{name}, cold", kernel, size, "cold")
        found.append(base)
        for share in PLANTED_SHARES:
            more = round(size * (1 + share))
            found.append(GateCase(f"{name} +{100 * share:g} %, cold", kernel, more, "cold", base.id, share))
    return tuple(found)


def in_session_order(cases: Sequence[GateCase], number: int) -> list[GateCase]:
    """Returns the cases in the order of session `number`, counted from 0.

    A base and its planted cases change places from session to session, so that their order causes no
    difference between them.
    """
    bases = dict.fromkeys(case.base for case in cases if case.base)
    ordered = [case for case in cases if not case.base and case.id not in bases]
    for base in bases:
        family = [case for case in cases if base in (case.id, case.base)]
        turn = number % len(family)
        ordered += [*family[turn:], *family[:turn]]
    return ordered


@functools.cache
def gate_source() -> str:
    """Returns the CUDA C++ of the kernels, and of those that check their results."""
    defines = {"CHAINS": FMA_CHAINS, "UNROLLED": FMA_UNROLLED, "BINS": BINS}
    lines = [f"#define {name} {value}\n" for name, value in defines.items()]
    return "".join(lines) + Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")


class GateKernels:
    """Holds arrays for the largest of some cases, and launches on them; a kernel's cases share its arrays.

    Args:
        cases: that will be asked for.

    Attributes:
        stream: the timed one.
    """

    def __init__(self, cases: Sequence[GateCase]) -> None:
        import numpy as np

        self._runtime = runtime()
        self.stream = self._runtime.stream
        self._arrays: dict[str, DeviceArray] = {}
        self._expected: dict[GateCase, Any] = {}
        self._factors: dict[int, list[Any]] = {}
        lengths: dict[str, int] = {}
        for kind, length in map(_elements, cases):
            lengths[kind] = max(length, lengths.get(kind, 0))
        for kind, dtype in (("floats", np.float32), ("doubles", np.float64), ("words", np.uint32)):
            if length := lengths.get(kind, 0):
                filled = self._allocate(kind, length, dtype)
                self._run(f"gate_fill_{kind}", length, filled.pointer, np.uint64(length))
                if kind != "words":
                    self._allocate(f"{kind} out", length, dtype)
        self._allocate("counts", BINS, np.uint32)
        self._allocate("total", 1, np.uint64)
        self._allocate("wrong", 1, np.uint64)
        self._allocate("end", 1, np.uint32)
        self._allocate("chains", self._runtime.multiprocessors * FMA_BLOCK, np.float32)
        self._order = np.random.default_rng(1).permutation(_CHAIN).astype(np.uint32)
        links = np.empty(_CHAIN, np.uint32)
        links[self._order] = np.roll(self._order, -1)
        self._allocate("links", _CHAIN, np.uint32).upload(links)
        self._runtime.synchronize()

    def close(self) -> None:
        """Gives the memory back."""
        for array in self._arrays.values():
            array.free()
        self._arrays.clear()

    # launching

    def launch(self, case: GateCase, stream: Any = None) -> Callable[[], Any]:
        """Returns what is timed: one launch of the case's kernel, on the timed stream or another."""
        stream = stream or self.stream
        if case.kernel == "gemm":
            return self._gemm(case.size)
        if case.kernel == "driver copy":
            to, of = self._pointer("doubles out"), self._pointer("doubles")
            return functools.partial(checked, "cuMemcpyDtoDAsync", to, of, case.size, int(stream.handle))
        from cuda.core import LaunchConfig, launch

        grid, block, arguments = self._shape(case)
        kernel = self._runtime.kernel(gate_source(), f"gate_{case.kernel}")
        return functools.partial(launch, stream, LaunchConfig(grid=grid, block=block), kernel, *arguments)

    def on_handle(self, case: GateCase, handle: int) -> Callable[[], Any]:
        """Returns the launch on another tool's stream."""
        from cuda.core import Stream

        return self.launch(case, Stream.from_handle(handle))

    def _shape(self, case: GateCase) -> tuple[int, int, tuple[Any, ...]]:
        """Returns blocks, threads in a block and arguments of a kernel of ours."""
        import numpy as np

        size, at = np.uint64(case.size), self._pointer
        blocks = self._runtime.multiprocessors
        match case.kernel:
            case "nothing":
                return 1, 1, ()
            case "scale" | "add" | "copy" | "transpose":
                kind, length = _elements(case)
                if case.kernel == "copy":
                    length = case.size // 16
                    size = np.uint64(length)
                return -(-length // BLOCK), BLOCK, (at(kind), at(f"{kind} out"), size)
            case "sum":
                return _BLOCKS_PER_SM * blocks, BLOCK, (at("words"), size, at("total"))
            case "histogram":
                return _BLOCKS_PER_SM * blocks, BLOCK, (at("words"), size, at("counts"))
            case "fma":
                return blocks, FMA_BLOCK, (at("chains"), np.uint32(1), np.uint32(case.size))
            case "chase":
                return 1, 1, (at("links"), at("end"), np.uint32(self._order[0]), np.uint32(case.size))
        raise LookupError(f"{case.kernel!r} is none of these kernels")

    def _gemm(self, n: int) -> Callable[[], Any]:
        """Multiplies two matrices by cuBLAS through CuPy; CuPy's current stream has to be the timed one."""
        import cupy
        import numpy as np

        if n not in self._factors:
            rng = np.random.default_rng(n)
            self._factors[n] = [rng.integers(0, _LARGEST_FACTOR, (n, n)).astype(np.float32) for _ in "ab"]
            for name, factor in zip("ab", self._factors[n], strict=True):
                self._allocate(f"{name} {n}", (n, n), np.float32).upload(factor)
            self._allocate(f"c {n}", (n, n), np.float32)
            self._runtime.synchronize()
        a, b, c = (cupy.asarray(self._arrays[f"{name} {n}"]) for name in "abc")
        return lambda: cupy.matmul(a, b, out=c)

    # checking

    def fault(self, case: GateCase) -> str | None:
        """Says what is wrong with the result of one launch on outputs that were poisoned, or None."""
        launch = self.launch(case)
        for name in ("floats out", "doubles out", "chains", "end", f"c {case.size}"):
            if name in self._arrays:
                self._arrays[name].fill(comparison.POISON)
        for name in ("total", "counts"):
            self._arrays[name].fill(0)
        self._runtime.synchronize()
        launch()
        self._runtime.synchronize()
        match case.kernel:
            case "nothing":
                return None
            case "fma":
                return _differing(self._arrays["chains"].download(), self._chains(case.size))
            case "chase":
                return _differing(self._arrays["end"].download(), self._order[case.size % _CHAIN])
            case "sum" | "histogram":
                return self._unlike_plain(case)
            case "gemm":
                return self._not_the_product(case.size)
        wrong = self._wrong(case)
        return f"{wrong} elements are wrong" if wrong else None

    def _chains(self, trips: int) -> Any:
        """Returns what each thread of the multiply-adds must have counted."""
        import numpy as np

        threads = np.arange(self._runtime.multiprocessors * FMA_BLOCK) % FMA_BLOCK % 64
        starts = FMA_CHAINS * threads + FMA_CHAINS * (FMA_CHAINS - 1) // 2
        return (starts + FMA_CHAINS * FMA_UNROLLED * trips).astype(np.float32)

    def _wrong(self, case: GateCase) -> int:
        """Counts elements of the output that are wrong, those beyond the case's size included."""
        import numpy as np

        kind, _ = _elements(case)
        copies = case.kernel in ("copy", "driver copy")
        size = case.size // 4 if copies else case.size
        room = self._arrays[kind].nbytes // (8 if case.kernel == "add" else 4)
        counter = self._arrays["wrong"]
        counter.fill(0)
        self._runtime.synchronize()
        self._run(
            f"gate_check_{'copy' if copies else case.kernel}",
            room,
            self._pointer(kind),
            self._pointer(f"{kind} out"),
            np.uint64(size),
            np.uint64(room),
            np.uint32(comparison.POISON),
            counter.pointer,
        )
        return int(counter.download()[0])

    def _unlike_plain(self, case: GateCase) -> str | None:
        """Says how a result with shared memory differs from the same without, or None."""
        import numpy as np

        array = self._arrays["total" if case.kernel == "sum" else "counts"]
        found = array.download()
        if case not in self._expected:
            array.fill(0)
            self._runtime.synchronize()
            arguments = (self._pointer("words"), np.uint64(case.size), array.pointer)
            self._run(f"gate_plain_{case.kernel}", case.size, *arguments)
            self._expected[case] = array.download()
        return _differing(found, self._expected[case])

    def _not_the_product(self, n: int) -> str | None:
        """Checks the product by Freivalds (1979): C·v = A·(B·v) for a random v, exact in whole numbers."""
        import numpy as np

        a, b = (factor.astype(np.float64) for factor in self._factors[n])
        v = np.random.default_rng(2).integers(1, 1000, n).astype(np.float64)
        return _differing(self._arrays[f"c {n}"].download().astype(np.float64) @ v, a @ (b @ v))

    # arrays

    def _allocate(self, name: str, shape: int | tuple[int, ...], dtype: Any) -> DeviceArray:
        array = DeviceArray(shape if isinstance(shape, tuple) else (shape,), dtype)
        self._arrays[name] = array
        return array

    def _run(self, name: str, threads: int, *arguments: Any) -> None:
        """Launches one of the kernels that are not timed, and waits."""
        self._runtime.launch(self._runtime.kernel(gate_source(), name), threads, *arguments)
        self._runtime.synchronize()

    def _pointer(self, name: str) -> int:
        return self._arrays[name].pointer


def _elements(case: GateCase) -> tuple[str, int]:
    """Names the kind of arrays that a kernel reads and writes, and how many elements; none for others."""
    match case.kernel:
        case "scale":
            return "floats", case.size
        case "transpose":
            return "floats", case.size**2
        case "add":
            return "doubles", case.size
        case "copy" | "driver copy":
            return "doubles", -(-case.size // 8)
        case "sum" | "histogram":
            return "words", case.size
    return "", 0


def _differing(found: Any, expected: Any) -> str | None:
    import numpy as np

    wrong = int(np.count_nonzero(np.asarray(found) != np.asarray(expected)))
    return f"{wrong} of {np.size(found)} results are wrong" if wrong else None
