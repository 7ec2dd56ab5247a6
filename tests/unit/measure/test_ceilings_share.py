"""How near a measurement comes to the ceilings, as a number and in words."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpukern.measure.ceilings import Ceilings

CEILINGS = Ceilings(
    device_copy_bytes_per_s=4.29e12,
    pinned_to_device_bytes_per_s=55e9,
    device_to_pinned_bytes_per_s=54e9,
    pageable_to_device_bytes_per_s=10e9,
    device_to_pageable_bytes_per_s=20e9,
    float16_flop_per_s=132e12,
    float32_flop_per_s=66e12,
    float64_flop_per_s=33e12,
    int32_op_per_s=32e12,
)


# shares


def test_a_cold_kernel_is_compared_with_the_copy_and_a_hot_one_with_nothing():
    assert CEILINGS.bandwidth_share(4.29e9, 1e6) == pytest.approx(1.0)
    assert CEILINGS.bandwidth_share(4.29e9, 2e6, cache="cold") == pytest.approx(0.5)
    assert CEILINGS.bandwidth_share(4.29e9, 1e6, cache="hot") is None


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        ("float16", 132e12),
        ("float32", 66e12),
        (np.float32, 66e12),
        (np.dtype("<f8"), 33e12),
        ("complex64", 66e12),
        ("complex128", 33e12),
        ("int32", 32e12),
        ("uint32", 32e12),
    ],
)
def test_operations_are_compared_with_the_rate_of_their_dtype(dtype, rate):
    assert CEILINGS.compute_share(rate / 1e3, 2e6, dtype) == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool"])
def test_a_dtype_without_a_rate_has_no_share(dtype):
    assert CEILINGS.compute_share(1e9, 1e6, dtype) is None


@pytest.mark.parametrize("amount", [None, 0])
@pytest.mark.parametrize("ns", [1e6, 0.0, float("nan")])
def test_what_was_not_declared_has_no_share(amount, ns):
    assert CEILINGS.bandwidth_share(amount, ns) is None
    assert CEILINGS.compute_share(amount, ns, "float32") is None


def test_what_was_not_measured_has_no_share():
    assert Ceilings().bandwidth_share(1e9, 1e6) is None
    assert Ceilings().compute_share(1e9, 1e6, "float32") is None
    assert Ceilings().host_copy_share(1e9, 1e9, 1e6) is None
    assert CEILINGS.bandwidth_share(1e9, 0.0) is None


@pytest.mark.parametrize(
    ("bytes_in", "bytes_out", "memory", "copies_ms"),
    [
        (10e6, 0, "pageable", 1.0),
        (0, 20e6, "pageable", 1.0),
        (10e6, 20e6, "pageable", 2.0),
        (55e6, 108e6, "pinned", 3.0),
    ],
)
def test_a_transfer_is_compared_with_its_copies_one_after_the_other(bytes_in, bytes_out, memory, copies_ms):
    share = CEILINGS.host_copy_share(bytes_in, bytes_out, 4e6, memory=memory)
    assert share == pytest.approx(copies_ms / 4)


def test_a_way_that_nothing_goes_needs_no_ceiling():
    one_way = Ceilings(pageable_to_device_bytes_per_s=10e9)
    assert one_way.host_copy_share(10e6, 0, 1e6) == pytest.approx(1.0)
    assert one_way.host_copy_share(10e6, 1, 1e6) is None
    assert one_way.host_copy_share(0, 0, 1e6) is None
