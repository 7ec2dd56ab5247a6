"""The state of a device at one moment, and which of its processes are not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from fake_nvml import MIG_UUIDS, UUIDS, FakeNvml, FakePynvml, NvmlError, field_values, state

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.nvml import CLOCK_EVENTS, DeviceState, GpuProcess, PowerLimits, Utilization, open_nvml
from pytest_gpukern.gpu.processes import DeviceWatch
from pytest_gpukern.gpu.selection import visible_devices

if TYPE_CHECKING:
    from pytest_gpukern.gpu.nvml import Nvml

NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, OPERATING_SYSTEM, UNKNOWN = 3, 13, 15, 17, 999
ME = os.getpid()
STRANGER = GpuProcess(2**22 + 5, "/usr/bin/python3", 1024)


def opened(monkeypatch: pytest.MonkeyPatch, module: FakePynvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return open_nvml()


# what NVML tells


def test_a_state_holds_what_nvml_tells_in_the_units_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(monkeypatch, FakePynvml()).state(UUIDS[0])
    assert (found.sm_clock_mhz, found.memory_clock_mhz) == (1965, 3201)
    assert (found.temperature_c, found.memory_temperature_c) == (41, 45)
    assert (found.power_w, found.energy_mj) == (420.5, 123456789)
    assert (found.clock_events, found.memory_used_bytes) == ((), 754820096)
    assert found.limited_ns == {"sw_power_cap": 7, "sw_thermal_slowdown": 0}
    assert found.foreign == ()


def test_two_states_are_apart_by_the_time_that_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(monkeypatch, FakePynvml())
    first, second = nvml.state(UUIDS[0]), nvml.state(UUIDS[0])
    assert 0 < second.at_ns - first.at_ns < 1e9


def test_a_state_takes_six_calls_of_nvml_once_the_device_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakePynvml()
    calls: list[str] = []
    for name in [name for name in vars(module) if name.startswith("nvmlDevice")]:
        answer = getattr(module, name)
        setattr(module, name, lambda *args, name=name, answer=answer: (calls.append(name), answer(*args))[1])
    nvml = opened(monkeypatch, module)
    nvml.state(UUIDS[0])
    calls.clear()
    nvml.state(UUIDS[0])
    assert len(calls) == 6


@pytest.mark.parametrize("bit", CLOCK_EVENTS)
def test_each_bit_has_a_name(monkeypatch: pytest.MonkeyPatch, bit: int) -> None:
    module = FakePynvml(nvmlDeviceGetCurrentClocksEventReasons=bit)
    assert opened(monkeypatch, module).state(UUIDS[0]).clock_events == (CLOCK_EVENTS[bit],)


def test_several_bits_are_several_names_and_one_that_is_new_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakePynvml(nvmlDeviceGetCurrentClocksEventReasons=0x40 | 0x4 | 0x8000)
    found = opened(monkeypatch, module).state(UUIDS[0])
    assert found.clock_events == ("sw_power_cap", "hw_thermal_slowdown", "unknown_0x8000")


def test_the_names_of_the_bits_are_nvmls_own() -> None:
    import pynvml

    for bit, name in CLOCK_EVENTS.items():
        camel = "".join(part.capitalize() for part in name.split("_"))
        known = getattr(pynvml, f"nvmlClocksThrottleReason{camel}")
        assert known == bit, name


def test_the_numbers_of_the_fields_are_nvmls_own() -> None:
    import pynvml

    from pytest_gpukern.gpu import nvml as adapter

    assert pynvml.NVML_FI_DEV_MEMORY_TEMP == adapter._MEMORY_TEMPERATURE_C
    assert pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION == adapter._ENERGY_MJ
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == adapter._POWER_MW
    assert adapter._LIMITED_NS == {
        pynvml.NVML_FI_DEV_PERF_POLICY_POWER: "sw_power_cap",
        pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: "sw_thermal_slowdown",
        pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: "sync_boost",
        pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT: "board_limit",
        pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY: "reliability",
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: "hw_thermal_slowdown",
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: "hw_power_brake_slowdown",
    }
    members = {name for name, _ in pynvml.c_nvmlValue_t._fields_}
    assert set(adapter._VALUE_MEMBERS) == members
    assert adapter._VALUE_MEMBERS[pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG] == "ullVal"
    assert adapter._VALUE_MEMBERS[pynvml.NVML_VALUE_TYPE_UNSIGNED_INT] == "uiVal"


def test_the_structures_of_the_real_module_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def fields(handle: object, ids: list[int]) -> object:
        values = (pynvml.c_nvmlFieldValue_t * len(ids))()
        for value, number in zip(values, ids, strict=True):
            value.fieldId, value.nvmlReturn = number, 0
            if number == 82:
                value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 50
            elif number == 83:
                value.valueType, value.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 2**40
            else:
                value.nvmlReturn = NOT_SUPPORTED
        return values

    found = opened(monkeypatch, FakePynvml(nvmlDeviceGetFieldValues=fields)).state(UUIDS[0])
    assert (found.memory_temperature_c, found.energy_mj, found.limited_ns) == (50, 2**40, {})


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, OPERATING_SYSTEM, UNKNOWN])
def test_what_is_not_told_is_none_and_stops_nothing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    silent = [
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetMemoryBusWidth",
    ]
    nvml = opened(monkeypatch, FakePynvml(dict.fromkeys(silent, code)))
    found = nvml.state(UUIDS[0])
    assert found == DeviceState(found.at_ns, memory_used_bytes=754820096)
    assert nvml.utilization(UUIDS[0], 0) == ()
    assert nvml.memory_bus_width_bits(UUIDS[0]) is None


def test_a_lost_gpu_is_an_error_and_no_missing_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = opened(monkeypatch, FakePynvml({"nvmlDeviceGetClockInfo": GPU_IS_LOST}))
    with pytest.raises(DeviceError, match="NVML failed to answer nvmlDeviceGetClockInfo"):
        nvml.state(UUIDS[0])


def test_older_and_newer_names_stand_in_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakePynvml(
        {
            "nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND,
            "nvmlDeviceGetTemperature": FUNCTION_NOT_FOUND,
        },
        nvmlDeviceGetCurrentClocksThrottleReasons=0x20,
        nvmlDeviceGetTemperatureV=lambda handle, sensor: 77 + sensor,
    )
    found = opened(monkeypatch, module).state(UUIDS[0])
    assert (found.clock_events, found.temperature_c) == (("sw_thermal_slowdown",), 77)


def test_power_and_energy_have_calls_of_their_own_where_the_fields_lack_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = opened(monkeypatch, FakePynvml(nvmlDeviceGetFieldValues=field_values({}))).state(UUIDS[0])
    assert (found.power_w, found.energy_mj, found.memory_temperature_c) == (400.0, 123000000, None)


def test_a_mig_instance_has_its_gpus_clocks_and_its_own_memory_but_no_power(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_the_gpu(answer: object) -> object:
        def call(handle: object, *args: object) -> object:
            if handle == "mig":
                raise NvmlError(NOT_SUPPORTED)
            return answer(handle, *args) if callable(answer) else answer

        return call

    def slot(_parent: object, index: int) -> str:
        if index:
            raise NvmlError(6)
        return "mig"

    module = FakePynvml(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=slot,
        nvmlDeviceGetUUID=lambda handle: MIG_UUIDS[0] if handle == "mig" else UUIDS[0],
        nvmlDeviceGetName="NVIDIA H200 MIG 1g.18gb",
        nvmlDeviceGetGpuInstanceId=9,
        nvmlDeviceGetComputeInstanceId=0,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(
            total=2**34, free=0, used=2**30 if handle == "mig" else 2**40
        ),
        nvmlDeviceGetClockInfo=of_the_gpu(1980),
        nvmlDeviceGetMaxClockInfo=of_the_gpu(1980),
        nvmlDeviceGetEnforcedPowerLimit=of_the_gpu(700000),
        nvmlDeviceGetMemoryBusWidth=of_the_gpu(6144),
        nvmlDeviceGetCurrentClocksEventReasons=of_the_gpu(0x40),
        nvmlDeviceGetFieldValues=of_the_gpu(field_values({82: 45, 83: 5, 186: 6})),
    )
    nvml = opened(monkeypatch, module)
    found = nvml.state(MIG_UUIDS[0])
    assert (found.sm_clock_mhz, found.clock_events) == (1980, ("hw_thermal_slowdown",))
    assert (found.memory_used_bytes, found.memory_temperature_c) == (2**30, 45)
    assert (found.power_w, found.energy_mj) == (None, None)
    assert nvml.limits(MIG_UUIDS[0]) == PowerLimits(None, 1980, 1980)
    assert nvml.memory_bus_width_bits(MIG_UUIDS[0]) == 6144


def test_of_the_utilization_only_what_is_newer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [
        SimpleNamespace(pid=7, timeStamp=100, smUtil=50),
        SimpleNamespace(pid=8, timeStamp=200, smUtil=60),
        SimpleNamespace(pid=0, timeStamp=0, smUtil=0),
    ]
    nvml = opened(monkeypatch, FakePynvml(nvmlDeviceGetProcessUtilization=samples))
    assert nvml.utilization(UUIDS[0], 100) == (Utilization(8, 200, 60),)


def test_a_state_survives_json() -> None:
    plain = json.loads(json.dumps(state(foreign=(STRANGER,), clock_events=("sw_power_cap",)).to_json()))
    foreign = tuple(GpuProcess(**process) for process in plain.pop("foreign"))
    events = tuple(plain.pop("clock_events"))
    assert DeviceState(**plain, foreign=foreign, clock_events=events) == state(
        foreign=(STRANGER,), clock_events=("sw_power_cap",)
    )
    assert DeviceState(0).to_json()["clock_events"] is None


# whose processes


def watch(nvml: FakeNvml, *strangers: GpuProcess) -> DeviceWatch:
    return DeviceWatch(nvml, visible_devices(nvml, {})[0], strangers)


def foreign(nvml: FakeNvml, *strangers: GpuProcess) -> tuple[GpuProcess, ...]:
    return watch(nvml, *strangers).state().foreign


def test_this_process_its_ancestors_and_its_children_are_not_foreign() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ours = [GpuProcess(pid, None, 1) for pid in (ME, os.getppid(), child.pid)]
        found = foreign(FakeNvml(processes=(*ours, STRANGER)))
        child.communicate(b"\n")
    assert found == (STRANGER,)


def test_in_a_container_what_came_with_our_context_is_ours_and_what_comes_later_is_not() -> None:
    us_as_the_host_sees_us = GpuProcess(2**22 + 77, "python", 500)
    nvml = FakeNvml(processes=(STRANGER, us_as_the_host_sees_us))
    watching = watch(nvml, STRANGER)
    assert watching.state().foreign == (STRANGER,)
    assert us_as_the_host_sees_us.pid in watching.ours
    assert STRANGER.pid not in watching.ours
    newcomer = GpuProcess(2**22 + 99, "train.py", 9000)
    nvml.processes += (newcomer,)
    assert watching.state().foreign == (STRANGER, newcomer)


def test_in_a_container_a_number_that_is_one_of_our_childrens_is_another_process_of_the_host() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        nvml = FakeNvml(processes=(GpuProcess(2**22 + 77, "python", 500),))
        watching = watch(nvml)
        nvml.processes += (GpuProcess(child.pid, "train.py", 9000),)
        found = watching.state().foreign
        child.communicate(b"\n")
    assert [process.name for process in found] == ["train.py"]


def test_how_busy_another_process_was_counts_from_the_last_state_on() -> None:
    nvml = FakeNvml(processes=(GpuProcess(ME, "us", 1), STRANGER))
    nvml.samples = (Utilization(STRANGER.pid, 100, 99),)
    watching = watch(nvml)
    assert watching.state().foreign == (STRANGER,), "what was before we watched does not count"
    nvml.samples += (
        Utilization(STRANGER.pid, 200, 30),
        Utilization(STRANGER.pid, 300, 40),
        Utilization(STRANGER.pid, 400, 0),
        Utilization(ME, 400, 60),
    )
    (busy,) = watching.state().foreign
    assert busy.sm_percent == 40
    assert str(busy).endswith("1024 MiB, kernels 40 % of the time)")
    (quiet,) = watching.state().foreign
    assert quiet.sm_percent is None


def test_a_watched_state_holds_what_nvml_tells() -> None:
    assert watch(FakeNvml(states=[state(5, temperature_c=60)])).state() == state(5, temperature_c=60)
