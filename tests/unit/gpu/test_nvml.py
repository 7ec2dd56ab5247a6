"""Tests NVML through pynvml: it gives readable reasons, and no crash if a driver does not answer."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pynvml
import pytest
from fake_nvml import FIELDS, HEALTHY, MIG_UUIDS, UUIDS, FakePynvml, field_values

from pytest_gpukern.gpu.errors import DeviceError, NvmlUnavailable
from pytest_gpukern.gpu.nvml import (
    CLOCK_EVENTS,
    Configuration,
    DeviceState,
    GpuProcess,
    PowerLimits,
    Utilization,
    open_nvml,
)

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 6, 13, 15
OPERATING_SYSTEM, UNKNOWN = 17, 999


@pytest.fixture
def opened(monkeypatch):
    def with_module(module):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return open_nvml()

    return with_module


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (12, r"no NVIDIA driver library \(libnvidia-ml.so.1 not found\)"),
        (18, "NVML could not start: RM has detected an NVML/RM version mismatch"),
        (28, "the NVIDIA driver is loaded, but it found no GPU"),
    ],
)
def test_why_nvml_did_not_start_is_said_in_words(opened, code, reason):
    with pytest.raises(NvmlUnavailable, match=f"^{reason}$"):
        opened(FakePynvml({"nvmlInit": code}))


def test_a_missing_package_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match="the package nvidia-ml-py is not usable"):
        open_nvml()


def test_a_driver_without_gpus_is_a_reason_and_is_closed_again(opened):
    closed: list[bool] = []
    module = FakePynvml(nvmlDeviceGetCount=0, nvmlShutdown=lambda: closed.append(True))
    with pytest.raises(NvmlUnavailable, match="found no GPU"):
        opened(module)
    assert closed == [True]


def test_a_gpu_is_described(opened):
    (gpu,) = opened(FakePynvml()).gpus()
    assert (gpu.index, gpu.name, gpu.uuid) == (0, "NVIDIA H200", UUIDS[0])
    assert (gpu.compute_capability, gpu.memory_total_bytes, gpu.mig_enabled) == ((9, 0), 150754820096, False)


def test_a_gpu_that_cannot_be_opened_is_left_out_and_the_others_keep_their_indices(opened):
    def open_gpu(index):
        if index == 0:
            raise pynvml.NVMLError(GPU_IS_LOST)
        return index

    module = FakePynvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=open_gpu,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
    )
    assert [(gpu.index, gpu.uuid) for gpu in opened(module).gpus()] == [(1, UUIDS[1])]


def test_units_are_converted_once(opened):
    nvml = opened(FakePynvml(nvmlSystemGetCudaDriverVersion=12090))
    assert nvml.cuda_version() == (12, 9)
    assert nvml.limits(UUIDS[0]).power_w == 700.0


def test_an_integrated_gpu_without_memory_of_its_own_has_that_of_the_host(opened):
    nvml = opened(FakePynvml({"nvmlDeviceGetMemoryInfo": NOT_SUPPORTED}))
    assert nvml.gpus()[0].memory_total_bytes > 2**28
    assert 0 < nvml.memory_free_bytes(UUIDS[0]) <= nvml.gpus()[0].memory_total_bytes


def test_processes_without_name_memory_or_pid_are_listed_all_the_same(opened):
    found = [SimpleNamespace(pid=41, usedGpuMemory=500 * 2**20), SimpleNamespace(pid=0, usedGpuMemory=None)]
    module = FakePynvml({"nvmlSystemGetProcessName": NOT_FOUND}, nvmlDeviceGetComputeRunningProcesses=found)
    processes = opened(module).compute_processes(UUIDS[0])
    assert processes == (GpuProcess(41, None, 500), GpuProcess(0, None, None))
    assert [str(process) for process in processes] == [
        "pid 41 (name unknown, 500 MiB)",
        "unknown pid (name unknown, memory unknown)",
    ]


def split(**answers):
    """A GPU with one MIG instance, whose handle is `mig`, in the fourth of seven slots."""

    def slot(_parent, index):
        if index != 3:
            raise pynvml.NVMLError(NOT_FOUND)
        return "mig"

    usual = {
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": slot,
        "nvmlDeviceGetUUID": lambda handle: MIG_UUIDS[0] if handle == "mig" else UUIDS[0],
    }
    return FakePynvml(**(usual | answers))


@pytest.mark.parametrize(
    ("name", "profile"), [("NVIDIA H200 MIG 1g.18gb", "1g.18gb"), ("NVIDIA H200", "unknown")]
)
def test_mig_instances_are_listed_with_their_profile(opened, name, profile):
    module = split(nvmlDeviceGetName=lambda handle: name if handle == "mig" else "NVIDIA H200")
    (mig,) = opened(module).gpus()[0].mig_instances
    assert (mig.uuid, mig.name, mig.mig_profile) == (MIG_UUIDS[0], f"NVIDIA H200 MIG {profile}", profile)
    assert (mig.index, mig.compute_capability, mig.mig_enabled) == (0, (9, 0), False)


def test_a_device_that_nvml_no_longer_lists_is_an_error(opened):
    with pytest.raises(DeviceError, match="NVML lists no device with the UUID MIG-gone"):
        opened(FakePynvml()).memory_free_bytes("MIG-gone")


def test_the_real_module_has_every_function_that_is_asked():
    asked = {name for name in vars(FakePynvml()) if name.startswith("nvml")}
    asked |= {name for name in vars(split()) if name.startswith("nvml")}
    asked |= {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksThrottleReasons"}
    assert {name for name in asked if not hasattr(pynvml, name)} == set()


# what NVML tells


def test_a_state_holds_what_nvml_tells_in_the_units_of_its_names(opened):
    found = opened(FakePynvml()).state(UUIDS[0])
    assert (found.sm_clock_mhz, found.memory_clock_mhz) == (1965, 3201)
    assert (found.temperature_c, found.memory_temperature_c) == (41, 45)
    assert found.power_w == 420.5
    assert (found.clock_events, found.memory_used_bytes) == ((), 754820096)
    assert found.limited_ns == {"sw_power_cap": 7, "sw_thermal_slowdown": 0}
    assert found.foreign == ()


def test_the_names_of_the_bits_are_nvmls_own():
    for bit, name in CLOCK_EVENTS.items():
        camel = "".join(part.capitalize() for part in name.split("_"))
        known = getattr(pynvml, f"nvmlClocksThrottleReason{camel}")
        assert known == bit, name


LIMITED = {
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "sw_power_cap",
    pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: "sw_thermal_slowdown",
    pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: "sync_boost",
    pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT: "board_limit",
    pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY: "reliability",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: "hw_thermal_slowdown",
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: "hw_power_brake_slowdown",
}


def test_the_structures_of_the_real_module_are_read(opened):
    def fields(handle, ids):
        values = (pynvml.c_nvmlFieldValue_t * len(ids))()
        for value, number in zip(values, ids, strict=True):
            value.fieldId, value.nvmlReturn = number, 0
            if number == pynvml.NVML_FI_DEV_MEMORY_TEMP:
                value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 50
            elif number in LIMITED:
                value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                value.value.ullVal = 2**40 + number
            else:
                value.nvmlReturn = NOT_SUPPORTED
        return values

    found = opened(FakePynvml(nvmlDeviceGetFieldValues=fields)).state(UUIDS[0])
    assert found.memory_temperature_c == 50
    assert found.limited_ns == {name: 2**40 + number for number, name in LIMITED.items()}


@pytest.mark.parametrize(
    "code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, OPERATING_SYSTEM, UNKNOWN]
)
def test_unknown_values_are_none_and_stop_nothing(opened, code):
    silent = (
        "ClockInfo CurrentClocksEventReasons Temperature FieldValues PowerUsage ProcessUtilization"
        " MemoryBusWidth ComputeRunningProcesses EnforcedPowerLimit MaxClockInfo Name"
    )
    silent = [f"nvmlDeviceGet{name}" for name in silent.split()]
    silent += ["nvmlSystemGetCudaDriverVersion", "nvmlSystemGetDriverVersion"]
    nvml = opened(FakePynvml(dict.fromkeys(silent, code)))
    found = nvml.state(UUIDS[0])
    assert found == DeviceState(found.at_ns, memory_used_bytes=754820096)
    assert nvml.gpus()[0].name == "NVIDIA GPU of unknown name"
    assert (nvml.utilization(UUIDS[0], 0), nvml.compute_processes(UUIDS[0])) == ((), ())
    assert nvml.limits(UUIDS[0]) == PowerLimits(None, None, None)
    assert (nvml.driver_version(), nvml.cuda_version()) == (None, None)
    assert nvml.memory_bus_width_bits(UUIDS[0]) is None


def test_a_lost_gpu_is_an_error_and_no_missing_answer(opened):
    nvml = opened(FakePynvml({"nvmlDeviceGetClockInfo": GPU_IS_LOST}))
    with pytest.raises(DeviceError, match="NVML failed to answer nvmlDeviceGetClockInfo"):
        nvml.state(UUIDS[0])


SEVERAL = ("sw_power_cap", "hw_thermal_slowdown", "unknown_0x8000")
OLDER = {"CurrentClocksThrottleReasons": 0x20, "TemperatureV": lambda handle, sensor: 77 + sensor}
BY_OLDER = {"clock_events": ("sw_thermal_slowdown",), "temperature_c": 77}


@pytest.mark.parametrize(
    ("failing", "answers", "told"),
    [
        # several bits are several names, and one that is new is kept
        ((), {"CurrentClocksEventReasons": 0x40 | 0x4 | 0x8000}, {"clock_events": SEVERAL}),
        # older and newer names stand in for each other
        (("CurrentClocksEventReasons", "Temperature"), OLDER, BY_OLDER),
        # power has a call of its own where the fields lack it
        ((), {"FieldValues": field_values({})}, {"power_w": 400.0, "memory_temperature_c": None}),
    ],
)
def test_what_a_driver_tells_otherwise_is_told_the_same(opened, failing, answers, told):
    failing = {f"nvmlDeviceGet{name}": FUNCTION_NOT_FOUND for name in failing}
    answers = {f"nvmlDeviceGet{name}": answer for name, answer in answers.items()}
    found = opened(FakePynvml(failing, **answers)).state(UUIDS[0])
    assert {name: getattr(found, name) for name in told} == told


def test_a_mig_instance_has_its_gpus_clocks_and_its_own_memory_but_no_power(opened):
    def of_the_gpu(answer):
        def call(handle, *args):
            if handle == "mig":
                raise pynvml.NVMLError(NOT_SUPPORTED)
            return answer(handle, *args) if callable(answer) else answer

        return call

    module = split(
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(
            total=2**34, free=0, used=2**30 if handle == "mig" else 2**40
        ),
        nvmlDeviceGetClockInfo=of_the_gpu(1980),
        nvmlDeviceGetMaxClockInfo=of_the_gpu(1980),
        nvmlDeviceGetEnforcedPowerLimit=of_the_gpu(700000),
        nvmlDeviceGetMemoryBusWidth=of_the_gpu(6144),
        nvmlDeviceGetCurrentClocksEventReasons=of_the_gpu(0x40),
        nvmlDeviceGetFieldValues=of_the_gpu(field_values(FIELDS)),
    )
    nvml = opened(module)
    found = nvml.state(MIG_UUIDS[0])
    assert (found.sm_clock_mhz, found.clock_events) == (1980, ("hw_thermal_slowdown",))
    assert (found.memory_used_bytes, found.memory_temperature_c) == (2**30, 45)
    assert found.power_w is None
    assert nvml.limits(MIG_UUIDS[0]) == PowerLimits(None, 1980, 1980)
    assert nvml.memory_bus_width_bits(MIG_UUIDS[0]) == 6144
    assert nvml.pcie_bytes(MIG_UUIDS[0]) is None, "others' traffic does not disturb it"


def test_bytes_over_pcie_are_counted_both_ways_beyond_where_the_counter_wraps(opened):
    sent, received = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    told = {sent: 2**32 - 3000, received: 1000}
    nvml = opened(FakePynvml(nvmlDeviceGetFieldValues=field_values(told)))
    before = nvml.pcie_bytes(UUIDS[0])
    told.update({sent: 500, received: 2500})
    assert nvml.pcie_bytes_since(UUIDS[0], before) == 3500 + 1500
    del told[received]  # a driver that does not know it
    assert nvml.pcie_bytes(UUIDS[0]) is nvml.pcie_bytes_since(UUIDS[0], before) is None


def test_only_newer_samples_of_the_utilization_are_kept(opened):
    samples = [
        SimpleNamespace(pid=7, timeStamp=100, smUtil=50),
        SimpleNamespace(pid=8, timeStamp=200, smUtil=60),
        SimpleNamespace(pid=0, timeStamp=0, smUtil=0),
    ]
    nvml = opened(FakePynvml(nvmlDeviceGetProcessUtilization=samples))
    assert nvml.utilization(UUIDS[0], 100) == (Utilization(8, 200, 60),)


def test_the_link_to_the_host_and_the_setup_are_told_and_unknown_where_the_driver_refuses(opened):
    answers = {
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
    }
    nvml = opened(FakePynvml(nvmlDeviceGetRemappedRows=[3, 1, 1, 0], nvmlDeviceGetComputeMode=3, **answers))
    link = {"generation": 1, "width": 8, "max_generation": 5, "max_width": 16}
    assert nvml.pcie_link(UUIDS[0]) == link
    assert nvml.configuration(UUIDS[0]) == dataclasses.replace(
        HEALTHY, remapped_rows=4, row_remap_pending=True, compute_mode="exclusive_process"
    )
    refused = ("PersistenceMode", "EccMode", "MigMode", "ComputeMode", "TotalEccErrors", "RemappedRows")
    refused += ("PowerManagementDefaultLimit",)
    failing = [*answers, *(f"nvmlDeviceGet{name}" for name in refused)]
    nvml = opened(FakePynvml(dict.fromkeys(failing, NOT_SUPPORTED), **answers))
    assert nvml.pcie_link(UUIDS[0]) == dict.fromkeys(link)
    assert nvml.configuration(UUIDS[0]) == Configuration()
