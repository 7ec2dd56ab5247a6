"""Tests what is fixed about a Device, what is asked anew, and when CUDA is asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_nvml import MIG_UUIDS, FakeNvml, split_gpu
from host_cuda import put_module

from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.selection import visible_devices


def test_free_memory_of_a_real_device_is_asked_each_time():
    device = visible_devices(FakeNvml(free_bytes=[30, 20]), {})[0]
    assert (device.memory_free_bytes, device.memory_free_bytes) == (30, 20)


def test_the_simulator_has_the_hosts_memory_one_multiprocessor_and_no_l2():
    device = Device.simulated()
    assert device.is_simulated
    assert 0 < device.memory_free_bytes <= device.memory_total_bytes
    assert (device.multiprocessor_count, device.l2_bytes) == (1, 0)


def test_multiprocessors_and_l2_are_those_of_cudas_first_device(monkeypatch):
    properties = SimpleNamespace(multiprocessor_count=132, l2_cache_size=60 * 2**20)
    put_module(monkeypatch, "cuda.core", Device=lambda ordinal: SimpleNamespace(properties=properties))
    device = visible_devices(FakeNvml(), {})[0]
    assert (device.multiprocessor_count, device.l2_bytes) == (132, 60 * 2**20)


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
