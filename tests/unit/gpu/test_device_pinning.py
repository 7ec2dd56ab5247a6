"""Pinning: one device is all that CUDA shows, and a CUDA that shows another already is an error."""

from __future__ import annotations

import pytest
from fake_nvml import MIG_UUIDS, UUIDS, FakeCuda, FakeNvml, gpu, split_gpu

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.libcuda import CudaDevice, CudaError, bare_uuid
from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.selection import pin, visible_devices

FIRST, SECOND = visible_devices(FakeNvml((gpu(0), gpu(1))), {})


def seen(*uuids: str) -> tuple[CudaDevice, ...]:
    return tuple(CudaDevice(bare_uuid(uuid), 132, 1) for uuid in uuids)


def test_a_pinned_device_is_the_only_one_by_uuid() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1,0"}
    pin(SECOND, environ, cuda=FakeCuda())
    assert environ == {"CUDA_VISIBLE_DEVICES": UUIDS[1], "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_mig_instance_is_pinned_by_its_own_uuid() -> None:
    (device, _) = visible_devices(FakeNvml((split_gpu(0),)), {})
    environ: dict[str, str] = {}
    pin(device, environ, cuda=FakeCuda())
    assert environ["CUDA_VISIBLE_DEVICES"] == MIG_UUIDS[0]


def test_restoring_puts_back_what_was_there_and_removes_what_was_not() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1,0", "HOME": "x"}
    pin(FIRST, environ, cuda=FakeCuda()).restore()
    assert environ == {"CUDA_VISIBLE_DEVICES": "1,0", "HOME": "x"}


def test_nested_pins_restore_in_turn() -> None:
    environ: dict[str, str] = {}
    with pin(FIRST, environ, cuda=FakeCuda()):
        with pin(SECOND, environ, cuda=FakeCuda()):
            assert environ["CUDA_VISIBLE_DEVICES"] == UUIDS[1]
        assert environ["CUDA_VISIBLE_DEVICES"] == UUIDS[0]
    assert environ == {}


def test_a_cuda_that_is_not_initialised_is_left_alone() -> None:
    cuda = FakeCuda()
    pin(FIRST, {}, cuda=cuda)
    assert cuda.asked == []


def test_a_cuda_initialised_for_another_device_is_an_error_that_names_suspects_and_remedy() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    cuda = FakeCuda(initialized=True, inside=seen(UUIDS[0], UUIDS[1]))
    with pytest.raises(DeviceError) as caught:
        pin(SECOND, environ, ["sys", "torch", "cupy"], cuda=cuda)
    message = str(caught.value)
    assert "(imported so far: cupy, torch)" in message
    assert f"its device 0 is the one with the UUID {bare_uuid(UUIDS[0])}" in message
    assert f"Start with CUDA_VISIBLE_DEVICES={UUIDS[1]}" in message
    assert environ == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_a_cuda_initialised_for_this_device_first_is_accepted_and_its_children_are_pinned() -> None:
    environ: dict[str, str] = {}
    pin(FIRST, environ, cuda=FakeCuda(initialized=True, inside=seen(UUIDS[0], UUIDS[1])))
    assert environ["CUDA_VISIBLE_DEVICES"] == UUIDS[0]


def test_a_cuda_initialised_without_devices_is_an_error() -> None:
    with pytest.raises(DeviceError, match="it shows no device"):
        pin(FIRST, {}, cuda=FakeCuda(initialized=True))


def test_a_cuda_that_fails_after_a_fork_is_an_error_with_its_own_words() -> None:
    class Broken(FakeCuda):
        def devices(self) -> tuple[CudaDevice, ...]:
            raise CudaError("cuInit failed with CUDA_ERROR_NOT_INITIALIZED (3)")

    with pytest.raises(DeviceError, match="cuInit failed"):
        pin(FIRST, {}, cuda=Broken(initialized=True))


def test_the_simulator_needs_no_pin() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    pin(Device.simulated(), environ, cuda=FakeCuda(initialized=True)).restore()
    assert environ == {"CUDA_VISIBLE_DEVICES": "1"}
