"""Who else is on the GPU, and which GPUs cannot reach each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fake_nvml import UUIDS, FakeNvml, gpu, split_gpu

from pytest_gpukern.gpu.model import Device
from pytest_gpukern.gpu.nvml import GpuProcess
from pytest_gpukern.gpu.peer_access import peer_access_warnings
from pytest_gpukern.gpu.process_tree import ancestors, is_alive, parent
from pytest_gpukern.gpu.processes import FAMILY, foreign_process_warning, foreign_processes
from pytest_gpukern.gpu.visibility import visible_devices

STRANGER = GpuProcess(2**22 + 5, "/usr/bin/python3", 1024)
UNKNOWN = GpuProcess(0, None, None)


def foreign(*processes: GpuProcess) -> tuple[GpuProcess, ...]:
    nvml = FakeNvml(processes=processes)
    return foreign_processes(nvml, visible_devices(nvml, {})[0])


def test_a_stranger_and_a_process_without_pid_are_foreign() -> None:
    assert foreign(STRANGER, UNKNOWN) == (STRANGER, UNKNOWN)


def test_this_process_and_its_ancestors_are_not_foreign() -> None:
    assert foreign(GpuProcess(os.getpid(), "pytest", 1), GpuProcess(os.getppid(), "sh", 1)) == ()


def test_a_child_of_ours_is_not_foreign() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = foreign(GpuProcess(child.pid, "python", 1))
        child.communicate(b"\n")
    assert found == ()


def test_the_idle_context_of_the_process_that_started_this_session_is_not_foreign() -> None:
    nvml = FakeNvml(processes=(STRANGER, UNKNOWN))
    device = visible_devices(nvml, {})[0]
    assert foreign_processes(nvml, device, {FAMILY: f"1,{STRANGER.pid}"}) == (UNKNOWN,)
    assert foreign_processes(nvml, device, {FAMILY: "nonsense,"}) == (STRANGER, UNKNOWN)


def test_the_simulator_has_no_processes() -> None:
    assert foreign_processes(FakeNvml(processes=(STRANGER,)), Device.simulated()) == ()


def test_the_warning_names_pid_name_and_memory() -> None:
    device = visible_devices(FakeNvml(), {})[0]
    assert foreign_process_warning(device, ()) is None
    one = foreign_process_warning(device, (STRANGER,))
    assert one is not None
    assert "another process used NVIDIA H200" in one
    assert f"pid {STRANGER.pid} (/usr/bin/python3, 1024 MiB)" in one
    two = foreign_process_warning(device, (STRANGER, UNKNOWN))
    assert two is not None
    assert "2 other processes" in two
    assert "unknown pid (name unknown, memory unknown)" in two


def warnings(*, peers: bool | None, limited: bool = True, **changes: object) -> list[str]:
    nvml = FakeNvml((gpu(0, **changes), gpu(1)), peers=peers)
    return peer_access_warnings(nvml, visible_devices(nvml, {}), limited_system=limited)


def test_two_gpus_without_peer_access_are_warned_about_where_managed_memory_stays_on_the_host() -> None:
    (warning,) = warnings(peers=False)
    assert all(uuid in warning for uuid in UUIDS[:2])
    assert "zero-copy" in warning
    assert f"CUDA_VISIBLE_DEVICES={UUIDS[0]}" in warning


@pytest.mark.parametrize("peers", [True, None])
def test_peer_access_that_is_there_or_unknown_is_not_warned_about(peers: bool | None) -> None:
    assert warnings(peers=peers) == []


def test_where_pages_migrate_nothing_is_warned_about() -> None:
    assert warnings(peers=False, limited=False) == []


def test_an_old_gpu_is_warned_about_on_any_system() -> None:
    assert len(warnings(peers=False, limited=False, compute_capability=(5, 2))) == 1


def test_each_pair_is_warned_about_once_and_mig_instances_not_at_all() -> None:
    nvml = FakeNvml((gpu(0), gpu(1), gpu(2)), peers=False)
    assert len(peer_access_warnings(nvml, visible_devices(nvml, {}), limited_system=True)) == 3
    nvml = FakeNvml((split_gpu(0), gpu(1)), peers=False)
    assert peer_access_warnings(nvml, visible_devices(nvml, {}), limited_system=True) == []


def test_the_parent_is_the_first_ancestor_and_init_the_last() -> None:
    found = ancestors()
    assert found[0] == os.getppid() == parent(os.getpid())
    assert len(set(found)) == len(found)


def test_a_process_that_has_ended_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    assert is_alive(os.getpid())
    child.wait()
    assert not is_alive(child.pid)
    assert not is_alive(0)
