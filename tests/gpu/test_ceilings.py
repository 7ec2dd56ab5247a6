"""Tests that a real device's ceilings are measured quickly and once, below and near theory."""

import sys
import time

import numpy as np
import pytest

from pytest_gpukern.measure.ceilings import Ceilings

ON_THE_DEVICE = (
    "device_copy_bytes_per_s",
    "float16_flop_per_s",
    "float32_flop_per_s",
    "float64_flop_per_s",
    "int32_op_per_s",
)


@pytest.fixture(scope="module")
def peaks(gpu_device):
    """What an H200 can do in theory, by field of `Ceilings`; nothing of another device."""
    from pytest_gpukern.gpu.nvml import open_nvml
    from pytest_gpukern.gpu.runtime import runtime
    from pytest_gpukern.gpu.theory import peaks_of

    if gpu_device.compute_capability != (9, 0):
        return {}
    with open_nvml() as nvml:
        found = peaks_of(nvml, gpu_device, runtime().device.properties)
    each_lane_per_s = found.multiprocessors * found.sm_clock_mhz * 1e6
    operations = {"float16_flop": 512, "float32_flop": 256, "float64_flop": 128, "int32_op": 128}
    rates = {f"{name}_per_s": count * each_lane_per_s for name, count in operations.items()}
    return {**rates, "device_copy_bytes_per_s": found.memory_bytes_per_s}


@pytest.fixture(scope="module")
def first(gpu_device):
    """What a measurement found, and its wall time with everything that is compiled for it, in seconds."""
    from pytest_gpukern.gpu.ceiling_kernels import measure_ceilings

    start = time.perf_counter()
    found = measure_ceilings()
    return found, time.perf_counter() - start


def test_every_ceiling_is_measured_in_a_few_seconds(first, peaks, capsys):
    found, wall_s = first
    with capsys.disabled():
        sys.stdout.write(f"\nceilings in {wall_s:.2f} s, compilation included\n")
        for name, value in found.values.items():
            peak = peaks.get(name)
            beside = f"  {value / peak:6.1%} of the peak {peak:.4g}" if peak else ""
            sys.stdout.write(f"  {name:32} {value:10.4g}{beside}\n")
    assert found.complaints == ()
    assert set(found.values) == {*Ceilings.__struct_fields__}
    assert wall_s < 6


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_no_ceiling_is_above_its_peak_or_below_half_of_it(first, peaks, name):
    found, _ = first
    if name not in peaks:
        pytest.skip("the peak of this device is not known")
    assert 0.5 < found.values[name] / peaks[name] <= 1.01


def test_copies_to_and_from_the_host_take_what_they_can_take(first):
    values = first[0].values
    for name in ("pinned_to_device", "device_to_pinned", "pageable_to_device", "device_to_pageable"):
        assert 0.5e9 < values[f"{name}_bytes_per_s"] < 1e12, name
    one_way, other = values["pinned_to_device_bytes_per_s"], values["device_to_pinned_bytes_per_s"]
    assert 0.9 * max(one_way, other) < values["duplex_pinned_bytes_per_s"] < 1.02 * (one_way + other)


def test_measured_again_the_device_has_the_same_ceilings(first):
    from pytest_gpukern.gpu.ceiling_kernels import measure_ceilings

    again = measure_ceilings()
    for name in ON_THE_DEVICE:
        assert again.values[name] == pytest.approx(first[0].values[name], rel=0.03), name


def test_by_the_hosts_clock_the_drivers_copy_is_near_the_ceiling_and_not_above(first):
    from pytest_gpukern.gpu.runtime import DeviceArray, checked, runtime

    cuda = runtime()
    size, copies = 1 << 30, 50
    source, target = (DeviceArray((size,), np.uint8) for _ in range(2))
    try:
        cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(copies):
            checked("cuMemcpyDtoDAsync", target.pointer, source.pointer, size, cuda.stream.handle)
        cuda.synchronize()
        took_ns = time.perf_counter_ns() - start
    finally:
        source.free()
        target.free()
    share = Ceilings(**first[0].values).bandwidth_share(2 * size, took_ns / copies)
    assert 0.8 < share < 1.02
