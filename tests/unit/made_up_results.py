"""Results of runs that never happened, for tests of what is done with results."""

from __future__ import annotations

from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.result import (
    CaseInfo,
    Correctness,
    DeviceWork,
    HostCopy,
    KernelFacts,
    Measurement,
    OutputError,
    Result,
    Summary,
    Verdict,
)
from pytest_gpukern.values.verdict_table import VerdictKind

FINGERPRINT = Fingerprint(
    device_name="NVIDIA H200",
    compute_capability=(9, 0),
    driver_version="580.159",
    cuda_driver_version="13.0",
    cpu_model="AMD EPYC",
    libraries={"cupy": "14.0"},
)

CEILINGS = {
    "device_copy_bytes_per_s": 4e12,
    "pageable_to_device_bytes_per_s": 20e9,
    "device_to_pageable_bytes_per_s": 10e9,
    "float32_flop_per_s": 60e12,
    "float64_flop_per_s": None,
}

EXP_KERNEL = DeviceWork(
    "kernel",
    "exp_kernel",
    1.0,
    48_600.0,
    kernel=KernelFacts("exp_kernel", 40, 128, 3072, grid=(63, 2, 1), block=(256, 1, 1), symbol="exp_kernel"),
)
COPY_IN = DeviceWork("memcpy", "memcpy HtoD, pageable", 2.0, 1e6, 16e6, None, HostCopy("HtoD", "pageable"))


def measured(median_ns=48_600.0, scope="kernel", timer="event", cache="cold", half=0.0025, **changes):
    """A measurement of ten samples, the middle ones at the median."""
    samples = (median_ns * (1 - half), *[median_ns] * 8, median_ns * (1 + half))
    values = {
        "measures": "made up",
        "samples_ns": samples,
        "iterations": 1,
        "summary": Summary(median_ns, samples[0], samples[-1], 10, changes.pop("notes", ())),
        "stopped": "10 samples",
    }
    return Measurement(scope=scope, timer=timer, cache=cache, **{**values, **changes})


def verdict(kind, ratio=None, reason="because"):
    return Verdict(VerdictKind(kind), reason, ratio)


def error(ulp=0.5, rel=2.3e-7, absolute=1e-7):
    return OutputError(10, 0, absolute, rel, ulp)


def result(label="cupy.exp", *measurements, verdicts=(), problem="vector_exp", point=None, **changes):
    """A result of a variant `backend.name`, or of a plain test where the label has no dot."""
    backend, dot, variant = label.partition(".")
    point = {"n": 1000} if point is None else point
    parameters = changes.pop("parameters", {})
    values = ",".join(f"{name}={value}" for name, value in {**point, **parameters}.items())
    case = CaseInfo(
        id=f"{problem}/{label}/{values}",
        problem=problem,
        problem_version=1,
        variant=variant if dot else label,
        backend=backend if dot else None,
        point=point,
        parameters=parameters,
        baseline_dir="baselines",
        baseline_name=problem,
    )
    filled = {
        "case": case,
        "nodeid": f"test_it.py::test_it[{case.id}]",
        "fingerprint": FINGERPRINT,
        "simulated": False,
        "correctness": Correctness.PASSED,
        "errors": {"y": error()},
        "measurements": measurements,
        "verdicts": {m.key: v for m, v in zip(measurements, verdicts, strict=False)},
    }
    return Result(**{**filled, **changes})
