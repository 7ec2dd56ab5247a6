"""Tests theoretical peaks against what NVIDIA publishes, and the least time that work can take."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import UUIDS, FakeNvml
from hypothesis import given
from hypothesis import strategies as st

import suites
from pytest_gpukern.baseline.codec import load
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.theory import MULTIPROCESSORS, Peaks, peaks_of
from pytest_gpukern.measure.plausibility import below_floor

H200 = Peaks((9, 0), 132, 60 * 2**20, sm_clock_mhz=1980, memory_clock_mhz=3201, memory_bus_bits=6144)

UNITS = ("fp64", "fp32", "tensor_fp64", "tensor_tf32", "tensor_half", "tensor_fp8", "int8")
# compute capability, multiprocessors, boost clock in MHz, and the published dense TFLOP/s of each unit
PUBLISHED = {
    "V100 SXM2": ((7, 0), 80, 1530, (7.8, 15.7, None, None, 125, None, None)),
    "T4": ((7, 5), 40, 1590, (None, 8.1, None, None, 65, None, 130)),
    "A100 SXM": ((8, 0), 108, 1410, (9.7, 19.5, 19.5, 156, 312, None, 624)),
    "A40": ((8, 6), 84, 1740, (None, 37.4, None, 74.8, 149.7, None, 299.3)),
    "L40S": ((8, 9), 142, 2520, (None, 91.6, None, 183, 362, 733, None)),
    "H100 SXM": ((9, 0), 132, 1980, (33.5, 66.9, 66.9, 494.7, 989.4, 1978.9, 1978.9)),
    "B200": ((10, 0), 148, 1965, (37, 74.4, None, 1125, 2250, 4500, 4500)),
    "RTX PRO 6000 Blackwell": ((12, 0), 188, 2617, (None, 126, None, 251.9, 503.8, 1007.6, 1007.6)),
}


@pytest.mark.parametrize("card", PUBLISHED)
def test_the_table_gives_what_nvidia_publishes_and_never_less(card):
    capability, multiprocessors, mhz, tera = PUBLISHED[card]
    for unit, published in zip(UNITS, tera, strict=True):
        ours = getattr(MULTIPROCESSORS[capability], unit) * multiprocessors * mhz * 1e6 / 1e12
        # Tensor figures are for a lower clock than the highest on Hopper (1830 MHz) and Blackwell.
        assert published is None or 0.995 * published <= ours <= 1.09 * published, unit


@pytest.mark.parametrize(
    ("card", "mhz", "bits", "gb_per_s"),
    [
        ("V100", 877, 4096, 898),
        ("T4", 5001, 256, 320),
        ("A100 40 GB", 1215, 5120, 1555),
        ("RTX 3090", 9751, 384, 936),
        ("RTX 4090", 10501, 384, 1008),
        ("H100 SXM", 2619, 5120, 3352),
        ("H200", 3201, 6144, 4917),
    ],
)
def test_the_memory_transfers_twice_a_clock(card, mhz, bits, gb_per_s):
    peaks = dataclasses.replace(H200, memory_clock_mhz=mhz, memory_bus_bits=bits)
    assert peaks.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=2e-3), card


# the fastest unit for a dtype


def tflops(*dtypes, **changes):
    found = dataclasses.replace(H200, **changes).flops_per_s(dtypes)
    return None if found is None else found / 1e12


def test_a_dtype_has_the_rate_of_the_fastest_unit_that_may_compute_it():
    assert tflops("float32") == tflops("float16") == tflops("bfloat16") == pytest.approx(1070.5, rel=1e-3)
    native = 132 * 256 * 1980e6 / 1e12
    assert native < 80.2 < tflops("float64"), "emulated by 8 bit products, as on a GH200"
    assert tflops("float64", "int32", "int64") == tflops("float64"), "indices count alone only"
    assert tflops("int32") == tflops("int8")
    assert tflops("complex64") == pytest.approx(4 / 3 * tflops("float32")), "three real products"


@pytest.mark.parametrize("dtypes", [(), ("bool",), ("uint8",), ("float32", "bool"), ("float4_e2m1fn",)])
def test_an_unknown_dtype_or_device_has_no_rate(dtypes):
    assert tflops(*dtypes) is None
    assert tflops("float32", compute_capability=(6, 1)) is tflops("float32", sm_clock_mhz=None) is None


# the least time


def floor(peaks=H200, **work):
    found = peaks.floor(**({"cache": "cold"} | work))
    assert found is not None
    return found


def test_large_traffic_is_bound_by_the_memory_less_what_the_l2_can_hold():
    found = floor(traffic_bytes=8e9)
    assert found.ns == pytest.approx((8e9 - 1.14 * 60 * 2**20) / 4916.7, rel=1e-3)
    assert found.bound == (
        "7.93 GB of 8 GB (the L2 can hold the rest) at 4.92 TB/s, the memory's theoretical bandwidth"
    )


def test_a_hot_l2_may_hold_as_much_before_the_call_as_after_it():
    saved = (floor(traffic_bytes=8e9).ns - floor(traffic_bytes=8e9, cache="hot").ns) * 4916.7
    assert saved == pytest.approx(0.86 * 60 * 2**20, rel=1e-3)


def test_what_fits_into_the_l2_is_bound_by_what_the_multiprocessors_can_load():
    found = floor(traffic_bytes=12e6, cache="hot")
    assert found.ns == pytest.approx(12e6 / (132 * 128 * 1.98), rel=1e-6)
    assert found.bound == "12 MB at 33.5 TB/s, what 132 multiprocessors can load and store"


def test_operations_bound_what_hardly_moves_anything():
    found = floor(traffic_bytes=50e6, flops=2 * 2048**3, dtypes=("float32", "int32"))
    assert found.ns == pytest.approx(2 * 2048**3 / 1070.5e3, rel=1e-3)
    assert found.bound == "17.2 GFLOP at 1.07 PFLOP/s, the fastest unit for float32"


@pytest.mark.parametrize("work", [{}, {"traffic_bytes": 0.0}, {"flops": 1e12}, {"traffic_bytes": None}])
def test_where_nothing_is_declared_or_known_there_is_no_floor(work):
    assert H200.floor(cache="cold", **work) is None


@given(st.floats(1, 1e12), st.floats(1, 1e15), st.sampled_from(["cold", "hot"]), st.floats(1, 10))
def test_more_work_never_has_a_lower_floor_and_cold_is_never_below_hot(traffic, flops, cache, more):
    work = {"traffic_bytes": traffic, "flops": flops, "dtypes": ("float32",)}
    base = floor(cache=cache, **work).ns
    assert floor(cache=cache, **(work | {"traffic_bytes": more * traffic})).ns >= base
    assert floor(cache=cache, **(work | {"flops": more * flops})).ns >= base
    assert floor(cache="cold", **work).ns >= floor(cache="hot", **work).ns


SUITES = Path(suites.__file__).parent
RECORDED = sorted(path.parent.parent.name for path in SUITES.glob("*/baselines/*.nvidia-h200.json"))


@pytest.mark.parametrize("suite", RECORDED)
def test_no_recorded_time_of_a_right_kernel_on_an_h200_is_impossible(suite):
    problem = getattr(importlib.import_module(f"suites.{suite}.problem"), suite)
    baseline = load(SUITES / suite / "baselines" / f"{suite}.nvidia-h200.json")
    inputs = problem.inputs(problem.axes.points("smoke")[0])
    dtypes = {str(array.dtype) for array in inputs.values() if hasattr(array, "dtype")}
    judged = 0
    for record in baseline.cases.values():
        point = record.sessions[-1].case.point
        for epoch in record.epochs:
            for time in (timed for session in epoch.sessions for timed in session.measurements):
                found = H200.floor(
                    cache=time.cache,
                    traffic_bytes=problem.traffic_bytes(point),
                    flops=problem.flops(point),
                    dtypes=dtypes or {"float32"},
                )
                judged += found is not None
                assert below_floor(time.summary.median_ns, found) is None
    assert judged or problem.traffic_bytes(problem.axes.points("smoke")[0]) is None


def test_the_floor_is_near_enough_to_catch_a_kernel_that_does_half_its_work():
    """An addition in place to 32 M float64 took 133.8 µs by CUPTI on an H200."""
    found = H200.floor(cache="cold", traffic_bytes=16 * 32e6, dtypes=("float64",))
    assert below_floor(133_800, found) is None
    assert below_floor(133_800 / 2, found) is not None


# where the values come from


DEVICE = Device(0, "NVIDIA H200", UUIDS[0], (9, 0), 140 * 2**30)
PROPERTIES = {"multiprocessor_count": 132, "l2_cache_size": 60 * 2**20}


def test_the_clocks_and_the_width_of_the_bus_are_those_that_nvml_tells():
    assert peaks_of(FakeNvml(), DEVICE, SimpleNamespace(**PROPERTIES)) == H200


def test_cuda_fills_in_what_nvml_does_not_tell():
    silent = FakeNvml(bus_bits=None, max_clocks=(None, None))
    told = {"clock_rate": 1_980_000, "memory_clock_rate": 3_201_000, "global_memory_bus_width": 6144}
    assert peaks_of(silent, DEVICE, SimpleNamespace(**PROPERTIES, **told)) == H200
    assert peaks_of(silent, DEVICE, SimpleNamespace(**PROPERTIES)) == Peaks((9, 0), 132, 60 * 2**20)


def test_the_properties_that_are_asked_exist():
    properties = pytest.importorskip("cuda.core._device").DeviceProperties
    for name in (*PROPERTIES, "clock_rate", "memory_clock_rate", "global_memory_bus_width"):
        assert hasattr(properties, name)
