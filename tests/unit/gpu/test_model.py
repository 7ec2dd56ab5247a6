"""Tests what is fixed about a Device, what is asked anew, and when CUDA is asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fake_nvml import MIG_UUIDS, UUIDS, FakeCuda, FakeNvml, split_gpu

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.libcuda import CudaDevice, bare_uuid
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.selection import visible_devices

SEEN = CudaDevice(bare_uuid(UUIDS[0]), 132, 60 * 2**20)
OTHER = CudaDevice(bare_uuid(UUIDS[1]), 20, 2**20)


def real(cuda):
    return Device(0, "NVIDIA H200", UUIDS[0], (9, 0), 140 * 2**30, cuda=cuda)


def test_free_memory_of_a_real_device_is_asked_each_time():
    device = visible_devices(FakeNvml(free_bytes=[30, 20]), {})[0]
    assert (device.memory_free_bytes, device.memory_free_bytes) == (30, 20)


def test_the_simulator_has_the_hosts_memory_one_multiprocessor_and_no_l2():
    device = Device.simulated()
    assert device.is_simulated
    assert 0 < device.memory_free_bytes <= device.memory_total_bytes
    assert (device.multiprocessor_count, device.l2_bytes) == (1, 0)


def test_the_simulated_device_claims_what_the_simulator_claims():
    script = "from numba import cuda; print(tuple(cuda.get_current_device().compute_capability))"
    environ = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    if "No module named" in done.stderr:
        pytest.skip("numba-cuda is not installed")
    assert done.stdout.strip() == str(Device.simulated().compute_capability)


def test_multiprocessors_and_l2_are_asked_of_cuda_once_the_device_is_pinned(monkeypatch):
    cuda = FakeCuda(inside=(SEEN,))
    device = real(cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[0])
    assert (device.multiprocessor_count, device.l2_bytes) == (132, 60 * 2**20)
    assert cuda.asked == 1


def test_cuda_is_not_initialised_before_the_device_is_pinned(monkeypatch):
    cuda = FakeCuda(inside=(SEEN,))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(DeviceError, match=r"pin .* before asking CUDA"):
        _ = real(cuda).l2_bytes
    assert not cuda.initialized


def test_the_device_is_found_by_uuid_among_those_an_initialised_cuda_shows():
    assert real(FakeCuda(initialized=True, inside=(OTHER, SEEN))).multiprocessor_count == 132
    with pytest.raises(DeviceError, match=f"CUDA cannot describe {UUIDS[0]}"):
        _ = real(FakeCuda(initialized=True, inside=(OTHER,))).l2_bytes


@pytest.mark.parametrize(
    ("name", "profile", "key"),
    [
        ("NVIDIA H200", None, "nvidia-h200"),
        ("NVIDIA GeForce RTX 4090 D", None, "nvidia-geforce-rtx-4090-d"),
        ("NVIDIA H200 MIG 1g.18gb", "1g.18gb", "nvidia-h200-mig-1g_18gb"),
        ("NVIDIA H100 MIG 1g.10gb+me", "1g.10gb+me", "nvidia-h100-mig-1g_10gb+me"),
        ("Quadro / K2000..", None, "quadro-k2000"),
    ],
)
def test_the_model_key_is_safe_in_a_file_name(name, profile, key):
    assert Device(0, name, "GPU-1", (9, 0), 1, mig_profile=profile).model_key == key


def test_a_mig_instance_is_a_device_of_its_own():
    device = visible_devices(FakeNvml((split_gpu(0),)), {})[0]
    assert (device.uuid, device.memory_total_bytes) == (MIG_UUIDS[0], 17 * 2**30)
    assert device.model_key == "nvidia-h200-mig-1g_18gb"
