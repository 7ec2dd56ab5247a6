"""NVML through pynvml: reasons in words, and no crash where a driver does not answer."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from fake_nvml import UUIDS, FakePynvml, NvmlError

from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.nvml import GpuProcess, PowerLimits, open_nvml

if TYPE_CHECKING:
    from pytest_gpukern.gpu.nvml import Nvml

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 6, 13, 15


def opened(monkeypatch: pytest.MonkeyPatch, module: FakePynvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return open_nvml()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (12, r"no NVIDIA driver library \(libnvidia-ml.so.1 not found\)"),
        (9, "the kernel driver is not loaded"),
        (4, "this user has no permission"),
        (18, "driver/library version mismatch"),
        (28, "found no GPU"),
        (999, "NVML could not start: code 999"),
    ],
)
def test_why_nvml_did_not_start_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    with pytest.raises(NvmlUnavailable, match=reason):
        opened(monkeypatch, FakePynvml({"nvmlInit": code}))


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match="the package nvidia-ml-py is not usable"):
        open_nvml()


def test_a_driver_without_gpus_is_a_reason_and_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    module = FakePynvml(nvmlDeviceGetCount=0, nvmlShutdown=lambda: closed.append(True))
    with pytest.raises(NvmlUnavailable, match="found no GPU"):
        opened(monkeypatch, module)
    assert closed == [True]


def test_closing_twice_shuts_down_once(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    with opened(monkeypatch, FakePynvml(nvmlShutdown=lambda: closed.append(True))) as nvml:
        nvml.close()
    assert closed == [True]


def test_a_gpu_is_described_whether_strings_are_text_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = opened(monkeypatch, FakePynvml()).gpus()
    in_bytes = FakePynvml(
        nvmlDeviceGetUUID=UUIDS[0].encode(),
        nvmlDeviceGetName=b"NVIDIA H200",
        nvmlDeviceGetPciInfo=SimpleNamespace(busId=b"00000000:01:00.0"),
    )
    assert opened(monkeypatch, in_bytes).gpus() == text
    (gpu,) = text
    assert (gpu.index, gpu.name, gpu.uuid, gpu.pci_bus_id) == (0, "NVIDIA H200", UUIDS[0], "00000000:01:00.0")
    assert (gpu.compute_capability, gpu.memory_total_bytes, gpu.mig_enabled) == ((9, 0), 150754820096, False)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION])
def test_what_a_driver_does_not_tell_is_left_open(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    silent = [
        "nvmlDeviceGetName",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlSystemGetDriverVersion",
    ]
    nvml = opened(monkeypatch, FakePynvml(dict.fromkeys(silent, code)))
    assert nvml.gpus()[0].name == "NVIDIA GPU of unknown name"
    assert nvml.compute_processes(UUIDS[0]) == ()
    assert nvml.limits(UUIDS[0]) == PowerLimits(None, None, None)
    assert nvml.driver_version() is None
    assert nvml.cuda_version() is None


def test_a_gpu_that_cannot_be_opened_is_left_out_and_the_others_keep_their_indices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_gpu(index: int) -> int:
        if index == 0:
            raise NvmlError(GPU_IS_LOST)
        return index

    module = FakePynvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=open_gpu,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
    )
    assert [(gpu.index, gpu.uuid) for gpu in opened(monkeypatch, module).gpus()] == [(1, UUIDS[1])]


def test_a_broken_gpu_is_an_error_and_no_missing_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(monkeypatch, FakePynvml({"nvmlDeviceGetMaxClockInfo": GPU_IS_LOST}))
    with pytest.raises(DeviceError, match="NVML failed to ask clocks"):
        nvml.limits(UUIDS[0])


def test_units_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(monkeypatch, FakePynvml(nvmlSystemGetCudaDriverVersion=12090))
    assert nvml.cuda_version() == (12, 9)
    assert nvml.limits(UUIDS[0]).power_w == 700.0


def test_an_integrated_gpu_without_memory_of_its_own_has_that_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = opened(monkeypatch, FakePynvml({"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED}))
    assert nvml.gpus()[0].memory_total_bytes > 2**28
    assert 0 < nvml.memory_free_bytes(UUIDS[0]) <= nvml.gpus()[0].memory_total_bytes


def test_processes_without_name_memory_or_pid_are_listed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        SimpleNamespace(pid=41, usedGpuMemory=500 * 2**20),
        SimpleNamespace(pid=0, usedGpuMemory=None),
    ]
    module = FakePynvml({"nvmlSystemGetProcessName": NOT_FOUND}, nvmlDeviceGetComputeRunningProcesses=found)
    processes = opened(monkeypatch, module).compute_processes(UUIDS[0])
    assert processes == (GpuProcess(41, None, 500), GpuProcess(0, None, None))
    assert [str(process) for process in processes] == [
        "pid 41 (name unknown, 500 MiB)",
        "unknown pid (name unknown, memory unknown)",
    ]


def test_an_older_driver_is_asked_for_processes_in_the_older_way(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakePynvml(
        {"nvmlDeviceGetComputeRunningProcesses": FUNCTION_NOT_FOUND},
        nvmlDeviceGetComputeRunningProcesses_v2=[SimpleNamespace(pid=7, usedGpuMemory=2**20)],
    )
    assert opened(monkeypatch, module).compute_processes(UUIDS[0]) == (GpuProcess(7, "/usr/bin/python3", 1),)


@pytest.mark.parametrize(
    ("name", "profile"), [("NVIDIA H200 MIG 1g.18gb", "1g.18gb"), ("NVIDIA H200", "1c.3g.71gb")]
)
def test_mig_instances_are_listed_with_ids_and_profile(
    monkeypatch: pytest.MonkeyPatch, name: str, profile: str
) -> None:
    def slot(_parent: object, index: int) -> str:
        if index != 3:
            raise NvmlError(NOT_FOUND)
        return "mig"

    attributes = SimpleNamespace(gpuInstanceSliceCount=3, computeInstanceSliceCount=1, memorySizeMB=72704)
    module = FakePynvml(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=slot,
        nvmlDeviceGetUUID=lambda handle: "MIG-1" if handle == "mig" else UUIDS[0],
        nvmlDeviceGetName=lambda handle: name if handle == "mig" else "NVIDIA H200",
        nvmlDeviceGetGpuInstanceId=9,
        nvmlDeviceGetComputeInstanceId=0,
        nvmlDeviceGetAttributes=attributes,
    )
    (mig,) = opened(monkeypatch, module).gpus()[0].mig_instances
    assert (mig.uuid, mig.name, mig.profile) == ("MIG-1", f"NVIDIA H200 MIG {profile}", profile)
    assert (mig.gpu_instance_id, mig.compute_instance_id) == (9, 0)


def test_a_device_that_nvml_no_longer_lists_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="NVML lists no device with the UUID MIG-gone"):
        opened(monkeypatch, FakePynvml()).memory_free_bytes("MIG-gone")


def test_the_real_module_has_every_function_that_is_asked() -> None:
    import pynvml

    optional_in_old_versions: set[str] = set()
    asked = {name for name in vars(FakePynvml()) if name.startswith("nvml")}
    asked |= {
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetAttributes",
    }
    asked |= {"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"}
    asked |= {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksThrottleReasons"}
    assert {name for name in asked if not hasattr(pynvml, name)} == optional_in_old_versions
