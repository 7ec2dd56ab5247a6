"""The kernels of `gpukern selftest --gate` on the pinned device: their data, their launches, their check.

Data are made on the device and checked there, so that a session begins within a second.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpukern.arrays import compare as comparison
from pytest_gpukern.gpu.runtime import DeviceArray, checked, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np


_CHAIN = 1 << 20
"""Links of the chain, 4 MiB: more than an L1 holds, less than an L2."""
_BLOCKS_PER_SM = 8
_LARGEST_FACTOR = 4
"""Entries of the matrices are 0 to 3, so that sums of up to a million products are whole floats."""


class GateKernels:
    """Arrays for the largest of some cases, and launches on them; all of a kernel's cases share its arrays.

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
        rooms = _rooms(cases)
        for name in ("floats", "doubles", "words"):
            if rooms[name]:
                self._make(name, rooms[name], f"gate_fill_{name}")
        for name in ("floats", "doubles"):
            if rooms[name]:
                self._allocate(f"{name} out", rooms[name], self._arrays[name].dtype)
        self._allocate("counts", BINS, np.uint32)
        self._allocate("total", 1, np.uint64)
        self._allocate("wrong", 1, np.uint64)
        self._allocate("end", 1, np.uint32)
        self._allocate("chains", self._runtime.multiprocessors * FMA_BLOCK, np.float32)
        self._order = np.random.default_rng(1).permutation(_CHAIN).astype(np.uint32)
        links = np.empty(_CHAIN, np.uint32)
        links[self._order] = np.roll(self._order, -1)
        self._allocate("links", _CHAIN, np.uint32).upload(links)
        self._matrices: dict[int, dict[str, Any]] = {}
        self._runtime.synchronize()

    def close(self) -> None:
        """Gives the memory back."""
        for array in self._arrays.values():
            array.free()
        self._arrays.clear()
        self._matrices.clear()

    # launching

    def launch(self, case: GateCase, stream: Any = None) -> Callable[[], Any]:
        """What is timed: one launch of the case's kernel, on the timed or another stream of cuda.core's."""
        stream = stream or self.stream
        if case.kernel == "gemm":
            return self._gemm(case.size, stream)
        if case.kernel == "driver copy":
            arguments = (
                self._pointer("doubles out"),
                self._pointer("doubles"),
                case.size,
                int(stream.handle),
            )
            return functools.partial(checked, "cuMemcpyDtoDAsync", *arguments)
        name, grid, block, arguments = self._shape(case)
        return self._launcher(f"gate_{name}", grid, block, arguments, stream)

    def on_handle(self, case: GateCase, handle: int) -> Callable[[], Any]:
        """The launch on somebody else's stream."""
        from cuda.core import Stream

        return self.launch(case, Stream.from_handle(handle))

    def _shape(self, case: GateCase) -> tuple[str, int, int, tuple[Any, ...]]:
        """Name, blocks, threads in a block and arguments of a kernel of ours."""
        import numpy as np

        size, at = np.uint64(case.size), self._pointer
        blocks = self._runtime.multiprocessors
        match case.kernel:
            case "nothing":
                return "nothing", 1, 1, ()
            case "scale":
                return "scale", -(-case.size // BLOCK), BLOCK, (at("floats"), at("floats out"), size)
            case "add":
                return "add", -(-case.size // BLOCK), BLOCK, (at("doubles"), at("doubles out"), size)
            case "copy":
                words = case.size // 16
                arguments = (at("doubles"), at("doubles out"), np.uint64(words))
                return "copy", -(-words // BLOCK), BLOCK, arguments
            case "transpose":
                return "transpose", -(-(case.size**2) // BLOCK), BLOCK, (at("floats"), at("floats out"), size)
            case "sum":
                return "sum", _BLOCKS_PER_SM * blocks, BLOCK, (at("words"), size, at("total"))
            case "histogram":
                return "histogram", _BLOCKS_PER_SM * blocks, BLOCK, (at("words"), size, at("counts"))
            case "fma":
                return "fma", blocks, FMA_BLOCK, (at("chains"), np.uint32(1), np.uint32(case.size))
            case "chase":
                first = np.uint32(self._order[0])
                return "chase", 1, 1, (at("links"), at("end"), first, np.uint32(case.size))
        raise LookupError(f"{case.kernel!r} is no kernel of the gate's self-test")

    def _launcher(
        self, name: str, grid: int, block: int, arguments: tuple[Any, ...], stream: Any
    ) -> Callable[[], Any]:
        from cuda.core import LaunchConfig, launch

        kernel = self._runtime.kernel(SOURCE, name)
        return functools.partial(launch, stream, LaunchConfig(grid=grid, block=block), kernel, *arguments)

    def _gemm(self, n: int, stream: Any) -> Callable[[], Any]:
        """cuBLAS through CuPy, whose current stream has to be the one that is meant."""
        import cupy

        found = self._multiplied(n)
        if stream is self.stream:
            return lambda: cupy.matmul(found["a"], found["b"], out=found["c"])
        other = cupy.cuda.Stream.from_external(stream)

        def elsewhere() -> None:
            with other:
                cupy.matmul(found["a"], found["b"], out=found["c"])

        return elsewhere

    def _multiplied(self, n: int) -> dict[str, Any]:
        """The matrices of n rows: on the device in CuPy's type, and the factors on the host."""
        import cupy
        import numpy as np

        if n not in self._matrices:
            rng = np.random.default_rng(n)
            made: dict[str, Any] = {}
            for name in ("a", "b"):
                made[f"host {name}"] = rng.integers(0, _LARGEST_FACTOR, (n, n)).astype(np.float32)
                self._allocate(f"{name} {n}", n * n, np.float32, shape=(n, n)).upload(made[f"host {name}"])
                made[name] = cupy.asarray(self._arrays[f"{name} {n}"])
            made["c"] = cupy.asarray(self._allocate(f"c {n}", n * n, np.float32, shape=(n, n)))
            self._runtime.synchronize()
            self._matrices[n] = made
        return self._matrices[n]

    # checking

    def fault(self, case: GateCase) -> str | None:
        """What is wrong with the result of one launch on outputs that were poisoned, in words, or None."""
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

    def _chains(self, trips: int) -> np.ndarray[Any, Any]:
        """What each thread of the multiply-adds must have counted."""
        import numpy as np

        threads = np.arange(self._runtime.multiprocessors * FMA_BLOCK) % FMA_BLOCK % 64
        starts = FMA_CHAINS * threads + FMA_CHAINS * (FMA_CHAINS - 1) // 2
        return (starts + FMA_CHAINS * FMA_UNROLLED * trips).astype(np.float32)

    def _wrong(self, case: GateCase) -> int:
        """How many elements of the output are wrong, those beyond the case's size included."""
        import numpy as np

        kernel, array, size = case.kernel, "floats", case.size
        if case.kernel in ("copy", "driver copy"):
            kernel, array, size = "copy", "doubles", case.size // 4
        elif case.kernel == "add":
            array = "doubles"
        room = self._arrays[array].nbytes // (8 if case.kernel == "add" else 4)
        arguments = (self._pointer(array), self._pointer(f"{array} out"), np.uint64(size), np.uint64(room))
        counter = self._arrays["wrong"]
        counter.fill(0)
        self._runtime.synchronize()
        poison = np.uint32(comparison.POISON)
        self._run(f"gate_check_{kernel}", room, *arguments, poison, counter.pointer)
        return int(counter.download()[0])

    def _unlike_plain(self, case: GateCase) -> str | None:
        """How a result with shared memory differs from the same without, or None."""
        import numpy as np

        name = "total" if case.kernel == "sum" else "counts"
        array = self._arrays[name]
        found = array.download()
        if case not in self._expected:
            array.fill(0)
            self._runtime.synchronize()
            arguments = (self._pointer("words"), np.uint64(case.size), array.pointer)
            self._run(f"gate_plain_{case.kernel}", case.size, *arguments)
            self._expected[case] = array.download()
        return _differing(found, self._expected[case])

    def _not_the_product(self, n: int) -> str | None:
        """By Freivalds (1979): C·v = A·(B·v) for a random v, exact since all are whole numbers."""
        import numpy as np

        made = self._multiplied(n)
        v = np.random.default_rng(2).integers(1, 1000, n).astype(np.float64)
        product = self._arrays[f"c {n}"].download().astype(np.float64) @ v
        return _differing(
            product, made["host a"].astype(np.float64) @ (made["host b"].astype(np.float64) @ v)
        )

    # arrays

    def _allocate(
        self, name: str, length: int, dtype: Any, *, shape: tuple[int, ...] | None = None
    ) -> DeviceArray:
        array = DeviceArray(shape or (length,), dtype)
        self._arrays[name] = array
        return array

    def _make(self, name: str, length: int, fill: str) -> None:
        import numpy as np

        dtype = {"floats": np.float32, "doubles": np.float64, "words": np.uint32}[name]
        array = self._allocate(name, length, dtype)
        self._run(fill, length, array.pointer, np.uint64(length))

    def _run(self, name: str, threads: int, *arguments: Any) -> None:
        """Launches one of the kernels that are not timed, and waits."""
        self._runtime.launch(self._runtime.kernel(SOURCE, name), threads, *arguments)
        self._runtime.synchronize()

    def _pointer(self, name: str) -> int:
        return self._arrays[name].pointer


def _rooms(cases: Sequence[GateCase]) -> dict[str, int]:
    """How many elements each kind of array must have for the largest case."""
    rooms = dict.fromkeys(("floats", "doubles", "words"), 0)
    for case in cases:
        match case.kernel:
            case "scale":
                rooms["floats"] = max(rooms["floats"], case.size)
            case "transpose":
                rooms["floats"] = max(rooms["floats"], case.size**2)
            case "add":
                rooms["doubles"] = max(rooms["doubles"], case.size)
            case "copy" | "driver copy":
                rooms["doubles"] = max(rooms["doubles"], -(-case.size // 8))
            case "sum" | "histogram":
                rooms["words"] = max(rooms["words"], case.size)
    return rooms


def _differing(found: Any, expected: Any) -> str | None:
    import numpy as np

    wrong = int(np.count_nonzero(np.asarray(found) != np.asarray(expected)))
    return f"{wrong} of {np.size(found)} results are wrong" if wrong else None


PLANTED_SHARES = (0.005, 0.01, 0.02, 0.05)
SHORT_TRIPS, LONG_TRIPS = 400, 9_600
ADD_ELEMENTS = 32_000_000
_MI = 1 << 20


@dataclass(frozen=True)
class GateCase:
    """One kernel at one size under one cache policy.

    Attributes:
        id: what it is called.
        kernel: which: `nothing`, `scale`, `add`, `copy`, `driver copy`, `sum`, `histogram`, `transpose`,
            `gemm`, `fma` or `chase`.
        size: elements, bytes of a copy, rows of a matrix, trips of a loop or steps of a chain.
        cache: `cold` or `hot`.
        base: the id of the case whose work this one's exceeds; empty for one that stays as it is.
        share: by how much, 0.01 for 1 %.
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
    ("fma 400 trips", "fma", SHORT_TRIPS, "hot"),
)
_BASES = (
    ("fma 9600 trips", "fma", LONG_TRIPS),
    ("add 32 M f64", "add", ADD_ELEMENTS),
    ("fma 400 trips", "fma", SHORT_TRIPS),
)
"""Compute-bound for 1.2 ms, memory-bound for 130 µs, compute-bound for 50 µs on an H200; cold."""


def gate_cases() -> tuple[GateCase, ...]:
    """All cases: those that stay as they are, then each base with its planted ones behind it."""
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


def in_session_order(cases: tuple[GateCase, ...], number: int) -> list[GateCase]:
    """The cases in the order of session `number`, counted from 0.

    A base and its planted cases change places from session to session, so that no difference between them
    comes from who went first.
    """
    ordered = [case for case in cases if not case.base and not _planted(cases, case)]
    for base in (case for case in cases if _planted(cases, case)):
        family = [base, *_planted(cases, base)]
        turn = number % len(family)
        ordered += [*family[turn:], *family[:turn]]
    return ordered


def _planted(cases: tuple[GateCase, ...], base: GateCase) -> list[GateCase]:
    return [case for case in cases if case.base == base.id]


BLOCK = 256
FMA_BLOCK = 1024
FMA_CHAINS = 4
FMA_UNROLLED = 8
BINS = 256

SOURCE = (
    rf"""
typedef unsigned long long u64;
#define CHAINS {FMA_CHAINS}
#define UNROLLED {FMA_UNROLLED}
#define BINS {BINS}
"""
    r"""
__device__ u64 here() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ u64 all() { return (u64)gridDim.x * blockDim.x; }
__device__ u64 mix(u64 x) {  // finalizer of SplitMix64 (Steele et al. 2014)
  x ^= x >> 30; x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27; x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// contents

extern "C" __global__ void gate_fill_floats(float *x, u64 n) {
  for (u64 i = here(); i < n; i += all()) x[i] = (float)(mix(i + 1) & 0xFFFF);
}
extern "C" __global__ void gate_fill_doubles(double *x, u64 n) {
  for (u64 i = here(); i < n; i += all()) x[i] = (double)(mix(i + 1) >> 12);
}
extern "C" __global__ void gate_fill_words(unsigned *x, u64 n) {
  for (u64 i = here(); i < n; i += all()) x[i] = (unsigned)mix(i + 1);
}

// what is timed

extern "C" __global__ void gate_nothing() {}

extern "C" __global__ void gate_scale(const float *x, float *y, u64 n) {
  u64 i = here();
  if (i < n) y[i] = 2.0f * x[i] + 1.0f;
}

extern "C" __global__ void gate_add(const double *x, double *y, u64 n) {
  u64 i = here();
  if (i < n) y[i] = x[i] + 2.0;
}

extern "C" __global__ void gate_copy(const uint4 *x, uint4 *y, u64 n) {
  u64 i = here();
  if (i < n) y[i] = x[i];
}

extern "C" __global__ void gate_transpose(const float *x, float *y, u64 n) {
  u64 i = here();
  if (i < n * n) y[(i % n) * n + i / n] = x[i];
}

// Adds to what is there: the host sets it to zero before a launch that is checked.
extern "C" __global__ void gate_sum(const unsigned *x, u64 n, u64 *total) {
  __shared__ u64 of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  u64 sum = 0;
  for (u64 i = here(); i < n; i += all()) sum += x[i];
  atomicAdd(&of_block, sum);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(total, of_block);
}

extern "C" __global__ void gate_histogram(const unsigned *x, u64 n, unsigned *bins) {
  __shared__ unsigned of_block[BINS];
  for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x) of_block[bin] = 0;
  __syncthreads();
  for (u64 i = here(); i < n; i += all()) atomicAdd(&of_block[x[i] % BINS], 1u);
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < BINS; bin += blockDim.x) atomicAdd(&bins[bin], of_block[bin]);
}

// Each multiply-add adds one, so that the result is their number. The compiler cannot know what `one` is.
// Unrolled trips would need a remainder, in which a trip takes another time.
extern "C" __global__ void gate_fma(float *out, unsigned one, unsigned trips) {
  float step = (float)one, chain[CHAINS];
#pragma unroll
  for (unsigned c = 0; c < CHAINS; ++c) chain[c] = (float)(threadIdx.x % 64 + c);
#pragma unroll 1
  for (unsigned trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (unsigned u = 0; u < UNROLLED; ++u)
#pragma unroll
      for (unsigned c = 0; c < CHAINS; ++c) chain[c] = fmaf(chain[c], step, step);
  }
  float sum = 0;
#pragma unroll
  for (unsigned c = 0; c < CHAINS; ++c) sum += chain[c];
  out[here()] = sum;
}

extern "C" __global__ void gate_chase(const unsigned *next, unsigned *end, unsigned at, unsigned steps) {
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) at = next[at];
  *end = at;
}

// what checks it

// Counts elements among the first n that are wrong, and among the others those that were written.
extern "C" __global__ void gate_check_scale(const float *x, const float *y, u64 n, u64 room, unsigned poison,
                                            u64 *wrong) {
  for (u64 i = here(); i < room; i += all())
    if (i < n ? y[i] != 2.0f * x[i] + 1.0f : __float_as_uint(y[i]) != poison) atomicAdd(wrong, 1ull);
}

extern "C" __global__ void gate_check_add(const double *x, const double *y, u64 n, u64 room, unsigned poison,
                                          u64 *wrong) {
  u64 both = ((u64)poison << 32) | poison;
  for (u64 i = here(); i < room; i += all())
    if (i < n ? y[i] != x[i] + 2.0 : (u64)__double_as_longlong(y[i]) != both) atomicAdd(wrong, 1ull);
}

extern "C" __global__ void gate_check_copy(const unsigned *x, const unsigned *y, u64 n, u64 room,
                                           unsigned poison, u64 *wrong) {
  for (u64 i = here(); i < room; i += all())
    if (y[i] != (i < n ? x[i] : poison)) atomicAdd(wrong, 1ull);
}

extern "C" __global__ void gate_check_transpose(const float *x, const float *y, u64 n, u64 room,
                                                unsigned poison, u64 *wrong) {
  for (u64 i = here(); i < room; i += all())
    if (i < n * n ? y[i] != x[(i % n) * n + i / n] : __float_as_uint(y[i]) != poison) atomicAdd(wrong, 1ull);
}

// The same as above, as plainly as can be.
extern "C" __global__ void gate_plain_sum(const unsigned *x, u64 n, u64 *total) {
  for (u64 i = here(); i < n; i += all()) atomicAdd(total, (u64)x[i]);
}

extern "C" __global__ void gate_plain_histogram(const unsigned *x, u64 n, unsigned *bins) {
  for (u64 i = here(); i < n; i += all()) atomicAdd(&bins[x[i] % BINS], 1u);
}
"""
)
