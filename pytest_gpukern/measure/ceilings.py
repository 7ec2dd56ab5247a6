"""Measures what the device can do: its ceilings once a machine, and its canaries once a session."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pytest_gpukern.gpu.libcuda import CudaError
from pytest_gpukern.measure.measure import Repeated, Sampler, warm_up
from pytest_gpukern.measure.statistics import StoppingRule
from pytest_gpukern.timers.timer import TimerUnavailable, open_timer
from pytest_gpukern.values.atomic_file import write_named
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import HostCopy, Measurement
from pytest_gpukern.values.stored import Stored
from pytest_gpukern.values.timer_table import auto_timers
from pytest_gpukern.values.untrusted_json import FileError, content_of, printable, read

if TYPE_CHECKING:
    from pytest_gpukern.gpu.ceiling_kernels import Measured
    from pytest_gpukern.gpu.runtime import CudaRuntime

_METHOD = 3
"""Part of the key. Raise it if kernels, methods or fields change, so that everybody measures again."""
_DEPENDS_ON = (
    *("device_name", "device_uuid", "mig_profile", "driver_version", "cuda_driver_version", "power_limit_w"),
    *("max_sm_clock_mhz", "max_memory_clock_mhz"),
    "cpu_model",  # copies to and from the host
)
"""Fields of a fingerprint; if one changes, we measure again."""

_RATES = {
    "float16": "float16_flop_per_s",
    "float32": "float32_flop_per_s",
    "float64": "float64_flop_per_s",
    "complex64": "float32_flop_per_s",
    "complex128": "float64_flop_per_s",
    "int32": "int32_op_per_s",
    "uint32": "int32_op_per_s",
}

_HOST_COPIES = {
    HostCopy("HtoD", "pageable"): "pageable_to_device_bytes_per_s",
    HostCopy("DtoH", "pageable"): "device_to_pageable_bytes_per_s",
    HostCopy("HtoD", "pinned"): "pinned_to_device_bytes_per_s",
    HostCopy("DtoH", "pinned"): "device_to_pinned_bytes_per_s",
}

_Rate = Annotated[float, msgspec.Meta(gt=0, description="a positive number")] | None


class Ceilings(Stored, frozen=True):
    """The best performance measured on a device; None if not measured.

    Attributes:
        device_copy_bytes_per_s: a copy far larger than the L2, counting bytes read and written.
        pinned_to_device_bytes_per_s: a copy from page-locked host memory; the next three are the other copies
            between host and device. Pageable memory is the memory of an ordinary array.
        duplex_pinned_bytes_per_s: page-locked copies in both directions at once, counting the bytes of both.
        float16_flop_per_s: multiply-adds in packed pairs, each two operations, without tensor cores.
        float32_flop_per_s: the faster of single and paired multiply-adds, each two operations.
        float64_flop_per_s: single multiply-adds, each two operations.
        int32_op_per_s: 32-bit integer multiply-adds, each two operations.
    """

    device_copy_bytes_per_s: _Rate = None
    pinned_to_device_bytes_per_s: _Rate = None
    device_to_pinned_bytes_per_s: _Rate = None
    pageable_to_device_bytes_per_s: _Rate = None
    device_to_pageable_bytes_per_s: _Rate = None
    duplex_pinned_bytes_per_s: _Rate = None
    float16_flop_per_s: _Rate = None
    float32_flop_per_s: _Rate = None
    float64_flop_per_s: _Rate = None
    int32_op_per_s: _Rate = None

    def bandwidth_share(self, traffic_bytes: float | None, ns: float, cache: str = "cold") -> float | None:
        """Returns the share of the device's copy bandwidth, 0.97 for 97 %; None with nothing to compare.

        It exceeds 1 if there are more reads than writes, unlike in a copy, or if the last writes are still in
        the L2. The memory sets no ceiling for data that a hot L2 may hold.
        """
        if cache == "hot":
            return None
        return _share(traffic_bytes, ns, self.device_copy_bytes_per_s)

    def compute_share(self, flops: float | None, ns: float, dtype: Any) -> float | None:
        """Returns the share of the device's FMA rate for `dtype`; None if that was not measured.

        An FMA counts as two `flops`; for complex numbers count the operations on their parts. Tensor cores
        exceed 1.
        """
        name = rate_of(dtype)
        return _share(flops, ns, None if name is None else getattr(self, name))

    def host_copy_share(self, copies: Iterable[tuple[HostCopy, float]], ns: float) -> float | None:
        """Returns the share of a time that copies from and to the host take at best, one after the other.

        Where they took less than that, they overlapped: then it is the share of both at once, as far as they
        are page-locked, or of the direction that takes longer. Each copy has its bytes. None if there is
        none, or if a rate was not measured, as of managed memory.
        """
        by_direction: dict[str, float] = {}
        pinned_bytes = 0.0
        for copy, count in copies:
            pinned_bytes += count * (copy.memory == "pinned")
            rate = getattr(self, _HOST_COPIES.get(copy, ""), None)
            if count and rate is None:
                return None
            copy_s = count / rate if rate else 0.0
            by_direction[copy.direction] = by_direction.get(copy.direction, 0.0) + copy_s
        in_turn = _share(sum(by_direction.values()), ns, 1.0)
        if in_turn is None or in_turn <= 1:
            return in_turn
        together_s = pinned_bytes / (self.duplex_pinned_bytes_per_s or math.inf)
        return _share(max(*by_direction.values(), together_s), ns, 1.0)


def load_or_measure(
    fingerprint: Fingerprint, warn: Callable[[str], None], measure: Callable[[], Measured]
) -> Ceilings:
    """Returns the ceilings of the device that `fingerprint` describes, from the cache or measured now.

    We store them for the next process, unless one could not be measured. Hold the device's lock: others would
    disturb the measurement, and processes that wait for the lock find the first one's file. `warn` is called
    with a line for each thing that was odd.
    """
    known = {"method": _METHOD, **{name: getattr(fingerprint, name) for name in _DEPENDS_ON}}
    encoded = msgspec.json.format(msgspec.json.encode(known, order="sorted"), indent=0)
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    folder = default_cache_dir()
    path = folder and folder / f"ceilings-{fingerprint.device_model_key}-{digest}.json"
    stored = _read(path, warn) if path else None
    if stored is not None:
        return stored
    measured = measure()
    ceilings = Ceilings(**measured.values)
    for complaint in measured.complaints:
        warn(complaint)
    if not measured.complaints:
        _write(path, ceilings, warn)
    return ceilings


def default_cache_dir() -> Path | None:
    """Returns the package's folder in the user's XDG cache folder; None for a user without a home folder."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not root.is_absolute():  # the specification says to ignore it
        try:
            root = Path.home() / ".cache"
        except RuntimeError:
            return None
    return root / "pytest-gpukern"


def _read(path: Path, warn: Callable[[str], None]) -> Ceilings | None:
    """Returns the stored ceilings; None if there are none, or, with a warning, if they are unusable."""
    try:
        stored: Ceilings = read(content_of(path), Ceilings, refuse=lambda _: None)
        if stored == Ceilings():
            raise ValueError("it holds no ceilings")
        return stored
    except (FileError, ValueError) as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            warn(f"{path} cannot be used ({printable(str(error))}): the device's ceilings are measured again")
    return None


def _write(path: Path | None, ceilings: Ceilings, warn: Callable[[str], None]) -> None:
    problem = "this user has no home folder"
    if path is not None:
        content = msgspec.json.format(msgspec.json.encode(ceilings), indent=1)
        try:
            write_named(path, content + b"\n", "XDG_CACHE_HOME")
            return
        except FileError as error:
            problem = f"{path} {error.problem}"
    warn(
        f"the device's ceilings are not stored and will be measured again by the next run: {problem}; "
        "set XDG_CACHE_HOME to a folder that can be written"
    )


def rate_of(dtype: Any) -> str | None:
    """Returns which field of `Ceilings` bounds work in a dtype; None if none does, or nobody knows it."""
    import numpy as np

    try:
        return _RATES.get(np.dtype(dtype).name) if dtype is not None else None
    except (TypeError, ValueError):  # no dtype, or one of a library that is not here
        return None


def _share(amount: float | None, ns: float, per_second: float | None) -> float | None:
    if not amount or not per_second or not 0 < ns < math.inf:
        return None
    return amount / per_second / ns * 1e9


# In each session on a GPU all canaries together take about 0.2 s.
_CANARY_RULE = StoppingRule(target_half_width=0.001, min_samples=30, max_samples=100, budget_s=0.03)


def measure_canaries() -> Measured:
    """Measures each canary on the pinned device in about 0.2 s; nothing else may use the device meanwhile.

    Returns name → median time in nanoseconds, by the timer used for kernels; the name ends with `/event` if
    CUPTI could not time it. We discard nothing for low clocks: canaries are there to show what slows the
    device down.
    """
    # Not above: reports read this file, and the kernels' file loads NumPy.
    from pytest_gpukern.gpu.ceiling_kernels import CANARIES, Measured, NotMeasuredError
    from pytest_gpukern.gpu.runtime import runtime

    cuda = runtime()
    times_ns: dict[str, float] = {}
    complaints = []
    for name, make in CANARIES.items():
        try:
            with make(cuda) as call:
                measured = _measured_canary(call, cuda)
        except (CudaError, NotMeasuredError) as error:
            complaints.append(f"the canary {name} could not be measured: {error}")
            continue
        by = "" if measured.timer == auto_timers()[0] else f"/{measured.timer}"
        times_ns[name + by] = measured.summary.median_ns
    return Measured(times_ns, tuple(complaints))


def _measured_canary(call: Callable[[], None], cuda: CudaRuntime) -> Measurement:
    """Measures it by the first timer that works; raises TimerUnavailable if none does."""
    call_ns = warm_up(call, cuda.synchronize, compiled=True).settled_ns

    def by(name: str) -> Measurement:
        timer = open_timer(name, cuda.stream)
        return Sampler(Repeated(call), timer, "kernel", "hot", call_ns, _CANARY_RULE).measure()

    *better, last = auto_timers()
    for name in better:
        with contextlib.suppress(TimerUnavailable):
            return by(name)
    return by(last)
