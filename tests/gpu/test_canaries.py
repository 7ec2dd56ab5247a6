"""Tests that a real device's canaries are quick and repeatable, and that hashes of outputs are stable."""

import sys
import time

import numpy as np
import pytest
from on_device import opened

from pytest_gpukern import Output
from pytest_gpukern.measure.ceilings import measure_canaries


@pytest.fixture(scope="module")
def first(gpu_device):
    """What the canaries read; whatever is compiled for them is compiled now."""
    return measure_canaries()


def test_every_canary_is_measured_and_takes_what_such_a_kernel_takes(first):
    assert first.complaints == ()
    times = {name.partition("/")[0]: ns for name, ns in first.values.items()}
    assert times.keys() == {"copy", "fma", "launch"}
    assert 20_000 < times["fma"] < 2_000_000
    assert 50_000 < times["copy"] < 20_000_000
    assert 100 < times["launch"] < 20_000


def test_again_they_read_the_same_within_a_percent(first, capsys):
    start = time.perf_counter()
    again = measure_canaries()
    took_s = time.perf_counter() - start
    with capsys.disabled():
        sys.stdout.write(f"\ncanaries in {took_s:.3f} s: {dict(again.values)}\n")
    for name in ("fma", "copy"):
        ((key, before),) = [entry for entry in first.values.items() if entry[0].startswith(name)]
        assert again.values[key] == pytest.approx(before, rel=0.01)


def test_they_give_their_memory_back(first, runtime):
    before = runtime.free_bytes()
    measure_canaries()
    assert runtime.free_bytes() >= before - 2**22


@pytest.mark.parametrize("count", [10, 300_007])
def test_the_hash_of_an_output_does_not_change_from_release_to_release(count):
    """Records hold it: the value was worked out from the source of the kernel, in NumPy."""
    workspace = opened("cupy").workspace({}, {"y": Output((count,), np.float32)})
    try:
        workspace.arrays["y"][...] = np.float32(1.5)
        i = np.arange(count, dtype=np.uint64)
        expected = int(_mix(0x3FC00000 + (i << 32) + i * 0x9E3779B97F4A7C15).sum())
        assert workspace.bits("y") == f"splitmix64:{expected:016x}"
    finally:
        workspace.close()


def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
