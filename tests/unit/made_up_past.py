"""Recorded sessions that never were, for tests of what is said about changes since."""

from __future__ import annotations

import made_up_results as made_up
from made_up_times import recorded

from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import KernelFacts, OutputError

KEY = "kernel/cupti/cold"
UUID = "GPU-11111111"
BEFORE = Fingerprint(
    device_uuid=UUID,
    driver_version="580.65.06",
    cuda_driver_version="13.0",
    power_limit_w=700.0,
    max_sm_clock_mhz=1980,
    cpu_model="AMD EPYC 9654",
    cpu_count=96,
    libraries={"cupy": "14.0", "numba": "0.67"},
)


def kernel(name="saxpy", code="beef", **changes):
    """A kernel as a record has it."""
    values = {"registers": 32, "local_bytes": 0, "shared_bytes": 0, "grid": (63, 1, 1), "block": (256, 1, 1)}
    return KernelFacts(name, machine_code_sha256=code, **{**values, **changes})


def facts(name="saxpy", code="beef", **changes):
    """A kernel as it was just seen."""
    return kernel(name, code, symbol=name, **changes)


def session(
    *kernels, sm_mhz=1980.0, memory_mhz=2619.0, fingerprint=BEFORE, key=KEY, scale=1.0, bits=None, **changes
):
    """A recorded session that took `scale` times 50 µs."""
    ns = 50_000.0 * scale
    known = {
        "quantiles_ns": (ns,) * 5,
        "observations": {"clocks": {"sm_mhz": sm_mhz, "memory_mhz": memory_mhz}},
        "fingerprint": fingerprint,
        "kernels": kernels or (kernel(),),
        "errors": {"y": accuracy(bits=bits)},
    }
    return recorded(ns, 0.002, key, **{**known, **changes})


def accuracy(ulp=0.5, rel=6e-8, absolute=1e-7, **more):
    return OutputError(1000, 0, absolute, rel, ulp, **more)


def past(*sessions):
    """One epoch of these sessions, by default of three alike."""
    return sessions or (session(),) * 3


def now(
    ratio=1.15, kind="SLOWER", *, sm_mhz=1980.0, scope="kernel", timer="cupti", reason="measured", **changes
):
    """A result whose only measurement got a verdict of this ratio, known to ±1 %."""
    clocks = {"sm_mhz": sm_mhz, "sm_mhz_low": sm_mhz - 3, "sm_mhz_high": sm_mhz + 3, "memory_mhz": 2619}
    label = changes.pop("label", "numba.saxpy")
    seen = {"clocks": changes.pop("clocks", clocks)}
    measured = made_up.measured(50_000 * ratio, scope, timer, observations=seen)
    verdict = made_up.Verdict(made_up.VerdictKind(kind), reason, ratio, ratio * 0.99, ratio * 1.01)
    filled = {"fingerprint": BEFORE, "kernels": (facts(),), **changes}
    return made_up.result(label, measured, verdicts=(verdict,), **filled)
