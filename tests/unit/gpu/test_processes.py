"""Tests which processes use the GPU, and which of them are ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fake_nvml import FakeNvml

from pytest_gpukern.gpu import processes
from pytest_gpukern.gpu.nvml import GpuProcess, Utilization
from pytest_gpukern.gpu.processes import (
    FAMILY,
    DeviceWatch,
    foreign_process_warning,
    foreign_processes,
    group_is_alive,
    is_alive,
)
from pytest_gpukern.gpu.selection import visible_devices

ME = os.getpid()
STRANGER = GpuProcess(2**22 + 5, "/usr/bin/python3", 1024)
UNKNOWN = GpuProcess(0, None, None)


def watch(nvml, *strangers):
    return DeviceWatch(nvml, visible_devices(nvml, {})[0], strangers)


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.communicate(b"\n")


def test_processes_other_than_this_one_its_ancestors_and_its_children_are_foreign(child):
    ours = [GpuProcess(pid, None, 1) for pid in (ME, os.getppid(), child.pid)]
    nvml = FakeNvml(processes=(*ours, STRANGER, UNKNOWN))
    assert foreign_processes(nvml, visible_devices(nvml, {})[0]) == (STRANGER, UNKNOWN)
    assert watch(nvml).state().foreign == (STRANGER, UNKNOWN)


def test_the_idle_context_of_the_process_that_started_this_session_is_not_foreign():
    nvml = FakeNvml(processes=(STRANGER, UNKNOWN))
    device = visible_devices(nvml, {})[0]
    assert foreign_processes(nvml, device, {FAMILY: f"1,{STRANGER.pid}"}) == (UNKNOWN,)
    assert foreign_processes(nvml, device, {FAMILY: "nonsense,"}) == (STRANGER, UNKNOWN)


def test_the_warning_names_pid_name_and_memory():
    device = visible_devices(FakeNvml(), {})[0]
    assert foreign_process_warning(device, ()) is None
    one = foreign_process_warning(device, (STRANGER,))
    assert "another process used NVIDIA H200" in one
    assert f"pid {STRANGER.pid} (/usr/bin/python3, 1024 MiB)" in one
    two = foreign_process_warning(device, (STRANGER, UNKNOWN))
    assert "2 other processes" in two
    assert "unknown pid (name unknown, memory unknown)" in two


def test_a_process_that_has_ended_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    assert is_alive(os.getpid())
    child.wait()
    assert not is_alive(child.pid)
    assert not is_alive(0)


def test_a_group_lives_as_long_as_a_process_of_it_that_is_no_zombie():
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    assert group_is_alive(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert not group_is_alive(child.pid)
    child.wait()


# whose processes


def test_in_a_container_what_came_with_our_context_is_ours_and_what_comes_later_is_not():
    us_as_the_host_sees_us = GpuProcess(2**22 + 77, "python", 500)
    nvml = FakeNvml(processes=(STRANGER, us_as_the_host_sees_us))
    watching = watch(nvml, STRANGER)
    assert watching.state().foreign == (STRANGER,)
    assert us_as_the_host_sees_us.pid in watching.ours
    assert STRANGER.pid not in watching.ours
    newcomer = GpuProcess(2**22 + 99, "train.py", 9000)
    nvml.processes += (newcomer,)
    assert watching.state().foreign == (STRANGER, newcomer)


def test_in_a_container_a_number_that_is_one_of_our_childrens_is_another_process_of_the_host(child):
    nvml = FakeNvml(processes=(GpuProcess(2**22 + 77, "python", 500),))
    watching = watch(nvml)
    nvml.processes += (GpuProcess(child.pid, "train.py", 9000),)
    assert [process.name for process in watching.state().foreign] == ["train.py"]


def test_how_busy_another_process_was_counts_from_the_last_state_on():
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


def test_what_went_over_pcie_while_the_state_was_taken_is_a_rate(monkeypatch):
    nvml = FakeNvml(pcie=[2**32 - 10_000, 50_000])
    ticks = iter([1_000_000, 3_000_000])
    watching = watch(nvml)
    monkeypatch.setattr(processes.time, "monotonic_ns", lambda: next(ticks))
    assert watching.state().pcie_bytes_per_s == 60_000 / 2e-3
    monkeypatch.undo()
    assert watching.state().pcie_bytes_per_s is None, "nobody tells"
