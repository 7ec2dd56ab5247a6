"""Tests hashing machine code that is loaded under observation, as a GPU's driver loaded it."""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cupti_replay import Status, recording
from cupti_scenarios import REGISTERS

from pytest_gpukern.gpu import cubin
from pytest_gpukern.timers.cupti import machine_code as module
from pytest_gpukern.timers.cupti.machine_code import machine_code, observed
from pytest_gpukern.timers.timer import TimerUnavailable

FUNCTION = 26
PLACES_OF_HANDLE = {"Kernel": 0, "CooperativeKernel": 0, "KernelEx": 1}
"""How a kernel is launched → the place of its handle among the parameters."""
CALLS = recording()["of"]["enums"]["driver_api_trace_cbid"]


def cubin_of(name):
    return gzip.decompress((Path(__file__).parents[1] / "data" / f"{name}.cubin.gz").read_bytes())


SPILLING, FIRST, LAUNCHES = map(
    cubin_of, ("kernels.cuda-13.5.sm_90", "numba-first.cuda-13.0.sm_90", "launches.cuda-13.0.sm_90")
)


def loaded(*codes):
    """Has these codes loaded instead of those of the recording, in order."""
    codes = iter(codes)
    return lambda event: {**event, "code": next(codes)} if "module" in event else event


def known(replay, name):
    """The hash of kernel `one` after each phase of a scenario, in a process that knew none."""
    machine_code.cache_clear()
    return [each["one"] for each in replay.drive(name)["known"]]


def code_of(image):
    return f"code:{cubin.code_sha256(image)}"


def module_of(code):
    return f"module:{hashlib.sha256(code).hexdigest()}"


def loading_observed():
    return observed(lambda code: code.loading(begins=True))


# which module


def test_what_is_loaded_while_nobody_looks_is_not_known(replay):
    """And hashes of one case are known when the next is measured: a library loads nothing a second time."""
    first, second, third = replay.drive("modules")["known"]
    assert [name for name, code in third.items() if code] == ["one", "two"]
    assert first["one"] == third["one"]
    assert second == third


@pytest.mark.parametrize(
    "call", [f"cuLaunch{how}{stream}" for how in PLACES_OF_HANDLE for stream in ("", "_ptsz")]
)
def test_the_launched_module_counts_if_several_have_a_kernel_of_one_name(replay, call):
    """CuPy, for one, has a module for small and one for large arrays, with kernels of one name."""
    one, other = known(replay, "versions in turn")[:2]

    def launched_by(event):
        if "kernel" not in event:
            return event
        handle, place = event["parameters"][1], PLACES_OF_HANDLE[call.removeprefix("cuLaunch").split("_")[0]]
        parameters = [0xC0F1, 0xC0F2]
        parameters[place] = handle
        return {**event, "event": CALLS[call], "parameters": parameters}

    replay.edit = launched_by
    found = known(replay, "versions in turn")
    assert found[:4] == [one, other] * 2
    assert len({*found}) == 3, "what is launched from both has a hash of both"


@pytest.mark.parametrize("method", ["module", "code"])
def test_what_a_call_launches_from_several_modules_has_a_hash_of_all_of_them(replay, method):
    codes = {"module": (b"one", FIRST, b"changed"), "code": (SPILLING, FIRST, LAUNCHES)}[method]
    of_all = []
    for order in ((0, 1), (1, 0), (2, 1)):
        replay.edit = loaded(*(codes[place] for place in order))
        of_all.append(known(replay, "versions in turn")[-1])
    assert of_all[0] == of_all[1] != of_all[2]
    assert all(each.startswith(f"{method}:") for each in of_all)


def test_what_an_earlier_test_launched_counts_no_longer(replay):
    assert known(replay, "versions in turn")[-1] is not None
    replay.astray = True
    with loading_observed():
        pass
    assert machine_code().sha256("one", REGISTERS) is None


def test_where_a_launch_may_be_from_modules_with_other_code_nothing_is_known(replay):
    assert known(replay, "versions at once") == [None, None]
    replay.edit = loaded(b"no cubin", b"no cubin")
    assert known(replay, "versions at once") == [module_of(b"no cubin")] * 2


def test_registers_tell_which_of_two_modules_a_launch_may_be_from(replay):
    """In one, `plain` takes 10 registers and `spilling` 24; the other knows neither."""
    for kernel, either, only in (("spilling", 24, 25), ("plain", 16, 10)):
        replay.edit = loaded(SPILLING, FIRST)
        replay.spoil = lambda record, kernel=kernel: (
            record.kind == FUNCTION and vars(record).update(name=kernel)
        )
        assert known(replay, "versions at once") == [None, None]
        assert machine_code().sha256(kernel, either) is None
        assert machine_code().sha256(kernel, only) == code_of(FIRST)


class CompiledKernel:
    """Triton's, as far as it tells what it has loaded; only `run` of one that is not loaded would load it."""

    def __init__(self, image, handle=None):
        self.function, self.kernel = handle, image

    @property
    def run(self):
        raise AssertionError("loads the kernel")


@pytest.mark.parametrize("seen", [True, False])
def test_triton_tells_which_of_its_versions_of_a_kernel_were_launched(replay, monkeypatch, seen):
    """Also of modules that nobody saw loaded."""
    triton = SimpleNamespace(CompiledKernel=CompiledKernel)
    monkeypatch.setitem(sys.modules, "triton.compiler.compiler", triton)
    one, other = {e["parameters"][1]: 0 for e in recording()["versions in turn"]["events"] if "kernel" in e}
    kept = [CompiledKernel(FIRST, one), CompiledKernel(LAUNCHES, other), CompiledKernel(SPILLING)]
    if seen:
        (handle,) = {e["parameters"][1] for e in recording()["versions at once"]["events"] if "kernel" in e}
        kept[0].function = handle
        assert known(replay, "versions at once") == [None, code_of(FIRST)]
        del kept[0]
        assert machine_code().sha256("one", REGISTERS) is None, "its handle may be another module's by now"
        return
    replay.edit = lambda event: None if "module" in event or "meanwhile" in event else event
    found = known(replay, "versions in turn")
    assert found[:4] == [code_of(FIRST), code_of(LAUNCHES)] * 2
    assert found[4] not in (*found[:4], None), "a hash of two hashes"
    kept[1].function = None
    assert machine_code().sha256("one", REGISTERS) is None


# reading what was loaded


def test_code_that_had_to_go_has_its_hash_all_the_same(replay, monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", len(SPILLING))
    replay.edit = loaded(FIRST, SPILLING)
    replay.begin("a module twice")
    with loading_observed():
        replay.synchronize()
    assert list(machine_code()._images.values()) == [SPILLING]
    with observed(lambda code: code.launches()):
        replay.synchronize()
    assert machine_code().sha256("one", REGISTERS) is None, "either of them"
    assert {facts.code for facts in machine_code()._known.values()} == {code_of(FIRST), code_of(SPILLING)}


def test_a_module_is_read_once_before_its_kernels_are_timed_however_often_it_is_loaded(replay, monkeypatch):
    read, code_sha256, expected = [], cubin.code_sha256, code_of(FIRST)
    monkeypatch.setattr(cubin, "code_sha256", lambda image: read.append(image) or code_sha256(image))
    replay.edit = loaded(FIRST, FIRST)
    replay.begin("a module twice")
    with loading_observed():
        replay.synchronize()
    assert read == []
    with observed(lambda code: code.launches()):
        replay.synchronize()
    assert read == [FIRST]
    assert machine_code().sha256("one", REGISTERS) == expected
    assert read == [FIRST]


def test_a_module_without_code_is_not_looked_at(replay):
    replay.edit = lambda event: loaded(b"")(event) if "meanwhile" not in event else None
    assert known(replay, "modules") == [None] * 3


def test_any_module_that_launches_from_the_device_is_known(replay):
    for codes, launches in (((FIRST, FIRST), False), ((FIRST, LAUNCHES), True)):
        replay.edit = loaded(*codes)
        known(replay, "a module twice")
        assert machine_code().any_launches_from_device() is launches


# why not


def test_an_error_meanwhile_gets_through_and_nothing_stays_observed(replay):
    replay.begin("modules")

    def fails():
        replay.synchronize()
        replay.events = replay.events[:3]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), loading_observed():
        fails()
    assert machine_code().sha256("one", REGISTERS)


def test_without_cupti_nothing_is_observed(replay):
    replay.refuse = lambda name, *arguments: Status.ERROR_NOT_COMPATIBLE
    assert replay.drive("modules") == {"known": [None] * 3, "refused": None}


@pytest.mark.parametrize("refused", ["subscribe", "enable_callback", FUNCTION])
def test_a_profiler_that_is_attached_keeps_nobody_from_working(replay, refused):
    replay.refuse = lambda name, *arguments: (
        Status.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED if refused in (name, *arguments) else None
    )
    worked = []
    found = replay.drive("modules", lambda: worked.append(1))
    assert len(worked) == 3
    assert "another profiler" in found["refused"]
    assert not any(found["known"][-1].values())
    assert replay.unused
    with pytest.raises(TimerUnavailable, match="another profiler"), machine_code().loading():
        pass


def test_records_that_cannot_be_read_in_the_end_keep_nobody_from_working(replay):
    flushed = []

    def refuse(name, *arguments):
        flushed.extend([name] * (name == "activity_flush_all"))
        return Status.ERROR_UNKNOWN if name == "activity_flush_all" and len(flushed) == 3 else None

    replay.refuse = refuse
    found = replay.drive("modules")
    assert found["refused"] == "CUPTI: ERROR_UNKNOWN (999)"
    assert [name for name, code in found["known"][-1].items() if code] == ["one"]
