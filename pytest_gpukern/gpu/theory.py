"""Computes the least time that work can take on a device, from its clocks, widths and unit counts.

Every bound errs on the fast side: a bound that a correct kernel can beat would call it a cheat. If clock,
width, compute capability or dtype is unknown, there is no bound; we never guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.nvml import Nvml

_LOADED_BYTES_PER_CLOCK = 128
"""Bytes that a multiprocessor can load and store per clock, from any cache: 32 lanes of 4 bytes from compute
capability 7.0 on (Jia et al., arXiv:1804.06826, measured less from the L1 of a V100). The L2 alone gives
less, 5120 bytes a clock for 108 multiprocessors in NVIDIA's A100 whitepaper. But data that a call reads twice
may come from the L1 the second time."""

_SURVIVES_FLUSH = 0.14
"""Share of the L2 that survives reading twice its size if lines are replaced at random: e⁻²."""

_OZAKI_PRODUCTS = 7
"""8-bit products that replace one product of 24-bit significands, the fewest that beat float32: 48 bits need
seven moduli of 8 bits (scheme II of Ozaki, Uchino & Imamura, arXiv:2504.08009: 80 TFLOP/s on a GH200, where
native float64 has 67). Full float64 takes about twice as many."""


class Multiprocessor(NamedTuple):
    """What a multiprocessor finishes in a clock, and the most that it holds at once.

    Rates are operations; a fused multiply-add counts as two. 0 means unknown. CUDA cores: "Throughput of
    Native Arithmetic Instructions" in the CUDA C++ Programming Guide. Tensor cores, dense: the whitepapers of
    V100, Turing, A100, GA102, Ada, H100, RTX Blackwell and the Blackwell data sheets, divided by
    multiprocessors and boost clock; half is the faster of float16 with float16 and with float32 accumulation.
    Half precision (in pairs) and 32-bit integers on the CUDA cores are never faster than these, so they bound
    nothing.

    The limits (warps, blocks, KiB of shared memory) stand in "Technical Specifications per Compute
    Capability" of the same guide.
    """

    fp64: int
    fp32: int
    tensor_fp64: int
    tensor_tf32: int
    tensor_half: int
    tensor_fp8: int
    int8: int
    warps: int
    blocks: int
    shared_kib: int


MULTIPROCESSORS: Mapping[tuple[int, int], Multiprocessor] = {
    # 8-bit dot products on CUDA cores
    (7, 0): Multiprocessor(64, 128, 0, 0, 1024, 0, 512, 64, 32, 96),
    (7, 2): Multiprocessor(64, 128, 0, 0, 1024, 0, 2048, 64, 32, 96),
    (7, 5): Multiprocessor(4, 128, 0, 0, 1024, 0, 2048, 32, 16, 64),
    (8, 0): Multiprocessor(64, 128, 128, 1024, 2048, 0, 4096, 64, 32, 164),
    (8, 6): Multiprocessor(4, 256, 0, 512, 1024, 0, 2048, 48, 16, 100),
    (8, 7): Multiprocessor(4, 256, 0, 1024, 2048, 0, 4096, 48, 16, 164),
    (8, 9): Multiprocessor(4, 256, 0, 512, 1024, 2048, 2048, 48, 24, 100),
    (9, 0): Multiprocessor(128, 256, 256, 2048, 4096, 8192, 8192, 64, 32, 228),
    (10, 0): Multiprocessor(128, 256, 128, 4096, 8192, 16384, 16384, 64, 32, 228),
    # int8 is slower there: an upper bound
    (10, 3): Multiprocessor(4, 256, 4, 4096, 8192, 16384, 16384, 64, 32, 228),
    (11, 0): Multiprocessor(4, 256, 4, 4096, 8192, 16384, 16384, 48, 24, 228),
    (12, 0): Multiprocessor(4, 256, 4, 512, 1024, 2048, 2048, 48, 24, 100),
    (12, 1): Multiprocessor(4, 256, 4, 512, 1024, 2048, 2048, 48, 24, 100),
}
"""By compute capability."""

_WIDE_INTEGERS = frozenset({"int16", "uint16", "int32", "uint32", "int64", "uint64"})
_COMPLEX = {"complex64": "float32", "complex128": "float64"}
_SAVED_BY_GAUSS = 4 / 3  # three real products for a complex one instead of four


@dataclass(frozen=True)
class Floor:
    """The least time that a call can take, in nanoseconds, and the bound in words."""

    ns: float
    bound: str


@dataclass(frozen=True)
class Peaks:
    """Theoretical peaks of one device; None if they depend on an unknown value.

    For a MIG instance we use the memory clock and width of the whole GPU: an upper bound.

    Attributes:
        sm_clock_mhz: highest clock of the multiprocessors.
        memory_clock_mhz: highest clock of the memory, which transfers twice a clock.
        memory_bus_bits: width of the memory bus.
    """

    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_bus_bits: int | None = None

    @property
    def memory_bytes_per_s(self) -> float | None:
        """Bandwidth of the memory: clock × 2 × width. An H200's 3201 MHz × 2 × 6144 bit are 4.92 TB/s."""
        if not self.memory_clock_mhz or not self.memory_bus_bits:
            return None
        return self.memory_clock_mhz * 1e6 * 2 * self.memory_bus_bits / 8

    @property
    def loaded_bytes_per_s(self) -> float | None:
        """Load and store rate of all multiprocessors together, from any cache: 33.5 TB/s on an H200."""
        if not self.sm_clock_mhz:
            return None
        return self.multiprocessors * _LOADED_BYTES_PER_CLOCK * self.sm_clock_mhz * 1e6

    def flops_per_s(self, dtypes: Iterable[str]) -> float | None:
        """Returns the operations per second of the fastest unit that can work on data of these dtypes.

        float32 may go through half-precision tensor cores: float16 has the ten mantissa bits of TF32 at
        twice its rate. float64 may be composed from float32 or from 8-bit products (Ozaki's scheme). The
        check of the results finds anything less precise. Beside floats, wide integers are indices and do not
        count.

        Strassen, Winograd and 2:4 sparsity do fewer operations than the textbook: declare those really done.

        Args:
            dtypes: NumPy's names of the dtypes of inputs and outputs.

        Returns:
            None if the device or one of the dtypes is unknown. bool and uint8 count as unknown, since they
            may hold packed types.
        """
        rates = MULTIPROCESSORS.get(self.compute_capability)
        if rates is None or not self.sm_clock_mhz:
            return None
        per_clock = [_operations_per_clock(rates, name) for name in _counted(dtypes)]
        known = [rate for rate in per_clock if rate is not None]
        if not known or len(known) < len(per_clock):
            return None
        return max(known) * self.multiprocessors * self.sm_clock_mhz * 1e6

    def floor(
        self,
        *,
        cache: str,
        traffic_bytes: float | None = None,
        flops: float | None = None,
        dtypes: Iterable[str] = (),
    ) -> Floor | None:
        """Returns the least time that a call with this much work can take; None if nothing bounds it.

        Not all traffic reaches the memory during the call. Data already in the L2 are read there (hot: up to
        all of the L2, cold: what survives the flush), and data written last stay there until later. We know
        only the sum of reads and writes, so we subtract both.

        Args:
            cache: `cold` if the L2 is flushed before each call, else `hot`.
            traffic_bytes: bytes that the call must read and write, each counted once.
            flops: operations it must do.
            dtypes: NumPy's names of the dtypes of inputs and outputs; without any, flops bound nothing.
        """
        names, traffic = _counted(dtypes), traffic_bytes or 0.0
        before = _SURVIVES_FLUSH * self.l2_bytes if cache == "cold" else self.l2_bytes
        beyond_l2, fastest = traffic - before - self.l2_bytes, " and ".join(sorted(names))
        of_all = f" of {_si(traffic, 'B')} (the L2 can hold the rest)"
        loads = f"what {self.multiprocessors} multiprocessors can load and store"
        floors = (
            _floor(beyond_l2, self.memory_bytes_per_s, "B", "the memory's theoretical bandwidth", of_all),
            _floor(traffic, self.loaded_bytes_per_s, "B", loads),
            _floor(flops or 0.0, self.flops_per_s(names), "FLOP", f"the fastest unit for {fastest}"),
        )
        return max((floor for floor in floors if floor is not None), key=lambda f: f.ns, default=None)


def peaks_of(nvml: Nvml, device: Device, properties: Any) -> Peaks:
    """Returns the peaks of a real device, by NVML and by `properties` of cuda.core's device."""
    limits = nvml.limits(device.uuid)
    return Peaks(
        compute_capability=device.compute_capability,
        multiprocessors=properties.multiprocessor_count,
        l2_bytes=properties.l2_cache_size,
        sm_clock_mhz=limits.sm_clock_mhz or _mhz(properties, "clock_rate"),
        memory_clock_mhz=limits.memory_clock_mhz or _mhz(properties, "memory_clock_rate"),
        memory_bus_bits=nvml.memory_bus_width_bits(device.uuid)
        or getattr(properties, "global_memory_bus_width", None),
    )


def _mhz(properties: Any, attribute: str) -> float | None:
    """Converts a clock from CUDA's kHz; None if CUDA does not know it."""
    khz = getattr(properties, attribute, None)
    return khz / 1000 if khz else None


def _counted(dtypes: Iterable[str]) -> frozenset[str]:
    """Returns the dtypes that decide the speed of operations: wide integers only if there are no others."""
    names = frozenset(dtypes)
    return names - _WIDE_INTEGERS or names


def _operations_per_clock(rates: Multiprocessor, dtype: str) -> float | None:
    if dtype in _COMPLEX:
        real = _operations_per_clock(rates, _COMPLEX[dtype])
        return None if real is None else _SAVED_BY_GAUSS * real
    if dtype == "float64":
        return max(rates.fp64, rates.tensor_fp64, rates.fp32, rates.int8 / _OZAKI_PRODUCTS)
    if dtype == "float32":
        return max(rates.fp32, rates.tensor_tf32, rates.tensor_half)
    if dtype in ("float16", "bfloat16"):
        return rates.tensor_half
    if dtype.startswith("float8"):
        return max(rates.tensor_fp8, rates.tensor_half)
    if dtype == "int8" or dtype in _WIDE_INTEGERS:
        return rates.int8
    return None


def _floor(amount: float, per_s: float | None, unit: str, bound: str, part: str = "") -> Floor | None:
    if amount <= 0 or per_s is None:
        return None
    return Floor(amount / per_s * 1e9, f"{_si(amount, unit)}{part} at {_si(per_s, f'{unit}/s')}, {bound}")


def _si(value: float, unit: str) -> str:
    """Formats three digits with a decimal prefix: 2.16e8 → "216 MB"."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * scale:
            return f"{float(f'{value / scale:.3g}'):g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
