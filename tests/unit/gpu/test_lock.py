"""Tests with real processes that only one measures on a device at a time."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from plugin.fake_gpu import lock_state

from pytest_gpukern import gpu as device_package
from pytest_gpukern.gpu import lock as lock_module
from pytest_gpukern.gpu.errors import DeviceError, DeviceLockTimeout
from pytest_gpukern.gpu.lock import DeviceLock, HostTurns

UUID = "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1"
ROOT = Path(device_package.__file__).parents[2]

HOLD = """
import sys; from pytest_gpukern.gpu.lock import DeviceLock
lock = DeviceLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
{then}
"""
FORKS = """
import os, time; from pathlib import Path; from pytest_gpukern.gpu.lock import HostTurns
with HostTurns(Path(sys.argv[2])).busy():
    if os.fork():
        input()
    print("forked", flush=True)  # what runs after a fork has run
    time.sleep(10)
"""
TRY = """
import sys; from pytest_gpukern.gpu.lock import DeviceLock, DeviceLockTimeout
try:
    DeviceLock(sys.argv[1]).acquire(timeout_s=0)
except DeviceLockTimeout as error:
    print("refused:", error)
else:
    print("passed")
"""


@contextmanager
def held(lock, *told, **how):
    lock.acquire(*told, **how)
    try:
        yield
    finally:
        lock.release()


def start(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, UUID, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(script):
    return start(script).communicate(timeout=10)[0].strip()


def first_line(process):
    return process.stdout.readline().strip()


def let_go(process):
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKERN_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def holder():
    """Another process that holds the lock until it reads a line or is killed."""
    process = start(HOLD.format(then="input(); lock.release(); input()"))
    assert first_line(process) == "held"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_waits_no_longer_than_asked_and_says_who_holds_the_lock(holder):
    before = time.monotonic()
    told = rf"{UUID} is in use by pid {holder.pid} on .* \(.*\): -c .*, since .*; gave up after 0.3 s"
    with pytest.raises(DeviceLockTimeout, match=told):
        DeviceLock(UUID).acquire(timeout_s=0.3, poll_s=0.02)
    assert 0.3 <= time.monotonic() - before < 3


def test_a_waiter_is_told_once_who_holds_the_lock_and_gets_it_when_it_is_released(holder):
    told = []
    threading.Timer(0.4, let_go, [holder]).start()
    with held(DeviceLock(UUID), told.append, timeout_s=10, poll_s=0.02):
        (said,) = told
    assert f"in use by pid {holder.pid}" in said


def test_a_waiter_that_has_to_wait_only_for_a_moment_is_told_nothing_where_it_asks_for_quiet(holder):
    told = []
    for quiet_s, count in ((5.0, 0), (0.1, 1)):
        with pytest.raises(DeviceLockTimeout):
            DeviceLock(UUID).acquire(told.append, timeout_s=0.3, poll_s=0.02, quiet_s=quiet_s)
        assert len(told) == count


def test_a_holder_that_is_killed_has_released_the_lock(holder):
    holder.send_signal(signal.SIGKILL)
    lock = DeviceLock(UUID)
    with held(lock, timeout_s=5, poll_s=0.02):
        assert lock.holder()[0] == str(os.getpid())


def test_a_child_of_the_holder_is_refused_and_does_not_wait_forever():
    with held(DeviceLock(UUID)):
        waits = TRY.replace("timeout_s=0", "").replace("except DeviceLockTimeout", "except Exception")
        assert "which started this process: a measured call must not" in answer(waits)


def test_a_child_made_by_fork_waits_as_others_do_and_does_not_free_the_lock():
    with held(DeviceLock(UUID)):
        child = os.fork()
        if child == 0:  # nothing of pytest may run here
            try:
                DeviceLock(UUID).acquire(timeout_s=0)
            except DeviceLockTimeout:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert answer(TRY).startswith("refused:")


def test_a_forked_child_that_outlives_the_holder_keeps_no_lock(tmp_path):
    process = start(HOLD.format(then=FORKS), str(tmp_path))
    assert [first_line(process) for _ in range(2)] == ["held", "forked"]
    assert lock_state(tmp_path / "host") == "busy"
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):  # communicate() would wait for the forked child
        pipe.close()
    assert lock_state(tmp_path / "host") == "free"
    with held(DeviceLock(UUID), timeout_s=2, poll_s=0.02):
        pass


def test_acquiring_again_in_one_process_counts():
    outer, inner = DeviceLock(UUID), DeviceLock(UUID)
    with held(outer):
        with held(inner), held(inner):
            pass
        assert answer(TRY).startswith("refused:")
    assert answer(TRY) == "passed"
    with pytest.raises(RuntimeError, match="not held by this process"):
        outer.release()


def test_file_and_folder_are_open_to_every_user_whatever_the_umask(folder):
    before = os.umask(0o077)
    try:
        with held(DeviceLock(UUID)):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o666


def test_a_link_in_place_of_the_lock_file_is_not_followed(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with held(DeviceLock(UUID)):
        pass
    (file,) = folder.iterdir()
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(DeviceError, match="cannot be used"):
        DeviceLock(UUID).acquire(timeout_s=0)
    assert victim.read_text() == "precious"


def test_a_link_in_place_of_the_folder_is_refused_with_the_remedy(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeviceError, match=r"is not a folder.*Set GPUKERN_LOCK_DIR"):
        DeviceLock(UUID).acquire(timeout_s=0)


def test_a_file_that_this_user_may_only_read_still_locks(holder, monkeypatch):
    really_open = os.open

    def refuse_writing(path, flags, mode=0o777):
        if flags & os.O_RDWR and str(path).endswith(".lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse_writing)
    with pytest.raises(DeviceLockTimeout, match=f"pid {holder.pid}"):
        DeviceLock(UUID).acquire(timeout_s=0)
    holder.kill()
    with held(DeviceLock(UUID), timeout_s=5, poll_s=0.02):
        assert answer(TRY).startswith("refused:")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (b"", "another process, which left no entry in "),
        (b"1\npid 1\x1b[2J\n\xff", "pid 1\\u001b[2J\\u000a\ufffd;"),
        (b"1\n" + bytes(10_000), "\\u0000\\u0000"),
    ],
    ids=["nothing", "not printable", "too much"],
)
def test_whatever_stands_in_the_lock_file_is_safe_to_print(folder, holder, entry, told):
    (file,) = folder.iterdir()
    file.write_bytes(entry)
    with pytest.raises(DeviceLockTimeout) as refused:
        DeviceLock(UUID).acquire(timeout_s=0)
    assert f"in use by {told}" in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_a_lock_file_removed_between_opening_and_locking_is_not_taken_for_the_lock(monkeypatch):
    opened = []
    open_lock_file = lock_module.open_lock_file

    def open_and_lose_once(path):
        fd = open_lock_file(path)
        if not opened:
            path.unlink()
        opened.append(fd)
        return fd

    monkeypatch.setattr(lock_module, "open_lock_file", open_and_lose_once)
    with held(DeviceLock(UUID), timeout_s=5, poll_s=0.01):
        assert answer(TRY).startswith("refused:")
    assert len(opened) == 2


def test_the_environment_names_the_folder_and_a_lock_given_back_names_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKERN_LOCK_DIR", str(tmp_path / "shared"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lock = DeviceLock("MIG-GPU-1/2/0")
    with held(lock):
        assert [path.parent.name for path in tmp_path.rglob("*.lock")] == ["shared"]
    assert lock.holder() == ("", "")


def test_who_times_on_the_host_waits_for_those_who_work_and_nobody_begins_meanwhile(tmp_path):
    first, second, third = (HostTurns(tmp_path) for _ in range(3))
    log = []

    def time_something():
        with second.alone():
            log.append("times")
            log.append(lock_state(tmp_path / "host"))

    def work():
        with third.busy():
            log.append("works")

    with first.busy():
        with second.busy():
            pass  # any number may work
        timing = threading.Thread(target=time_something)
        timing.start()
        while not (tmp_path / "host-gate").exists() or lock_state(tmp_path / "host-gate") == "free":
            time.sleep(0.001)
        working = threading.Thread(target=work)
        working.start()
        assert log == []
    timing.join()
    working.join()
    assert log == ["times", "alone", "works"]
    assert lock_state(tmp_path / "host") == "free"


def test_a_process_on_the_host_is_in_one_state_at_a_time(tmp_path):
    turns = HostTurns(tmp_path)

    def state():
        return lock_state(tmp_path / "host")

    with turns.busy():
        assert state() == "busy"
        with turns.resting():
            assert state() == "free"
            with turns.busy():
                assert state() == "free"
            with turns.alone():
                assert state() == "alone"
                with turns.resting(), turns.alone():
                    assert state() == "alone"
        assert state() == "busy"
    assert state() == "free"
