"""Tests reading the arguments of launches, from parameters that are made by hand as the driver gets them."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace

import pytest
from cupti_replay import recording

from pytest_gpukern.arrays.memory import Span
from pytest_gpukern.timers.cupti import launch_arguments
from pytest_gpukern.timers.cupti.launch_arguments import arguments_of
from pytest_gpukern.timers.cupti.machine_code import machine_code

CALLS = recording()["of"]["enums"]["driver_api_trace_cbid"]
X, Y, ELSEWHERE = 0x7F00_0000_0000, 0x7F00_0001_0000, 0x7F00_0009_0000
ARRAYS = [("x", Span(X, X + 4096)), ("y", Span(Y, Y + 4096))]
SIZES = ((0, 4), (8, 24), (32, 8))
FUNCTION, KERNEL, UNKNOWN = 0xF1, 0xC1, 0x99
INVALID = 1
ENTRY = 0


def content(rounds=7, x=X, length=64, y=Y):
    """Bytes of an int, a structure with an address between two numbers, and an address."""
    return struct.pack("<i4xqqqq", rounds, length, x, 4, y)


class Launch:
    """The parameters of a launch in memory, in one of the driver's ways to pass arguments."""

    def __init__(self, call="cuLaunchKernel", data=None, *, handle=FUNCTION, packed=False, attributes=0):
        buffer = ctypes.create_string_buffer(content() if data is None else data)
        start = ctypes.addressof(buffer)
        pointers = (ctypes.c_uint64 * len(SIZES))(*(start + offset for offset, _ in SIZES))
        extra = (ctypes.c_uint64 * 5)(2, 0, 1, start, 0)  # the size, the buffer, and no more
        config = (ctypes.c_uint64 * 7)(*[0] * 6, attributes)
        way = (0, ctypes.addressof(extra)) if packed else (ctypes.addressof(pointers), 0)
        head = (ctypes.addressof(config), handle) if call == "cuLaunchKernelEx" else (handle, *[0] * 5)
        self.call, self.handle = call, handle
        self.parameters = (ctypes.c_uint64 * 8)(*head, *way)
        self._held = buffer, pointers, extra, config

    @property
    def arguments(self):
        return arguments_of(self.call, ctypes.addressof(self.parameters), self.handle)


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    """A driver that knows a function and a kernel, and memory from `X` on."""

    def told_of(known):
        def told(handle, number, offset, size):
            if handle.value != known or number.value >= len(SIZES):
                return INVALID
            offset._obj.value, size._obj.value = SIZES[number.value]
            return 0

        return told

    library = SimpleNamespace(
        cuFuncGetParamInfo=told_of(FUNCTION),
        cuKernelGetParamInfo=told_of(KERNEL),
        cuPointerGetAttribute=lambda data, attribute, address: 0 if address.value >= X else INVALID,
    )
    monkeypatch.setattr(launch_arguments, "_driver", lambda: library)
    return library


WAYS = {
    "pointers": {},
    "a kernel's handle": {"handle": KERNEL},
    "one buffer": {"packed": True},
    "cooperative": {"call": "cuLaunchCooperativeKernel"},
    "with a configuration": {"call": "cuLaunchKernelEx"},
    "with a configuration, one buffer": {"call": "cuLaunchKernelEx", "packed": True},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_bytes_and_addresses_are_told_apart_however_they_are_passed(driver, way):
    whole = content()
    assert Launch(**way).arguments == (whole[:4], whole[8:16], X, whole[24:32], b"", Y, b"")
    driver.cuKernelGetParamInfo = driver.cuFuncGetParamInfo  # which may know functions, too
    assert len(Launch().arguments) == 7


@pytest.mark.parametrize(
    ("way", "lacks"),
    [
        ({"handle": UNKNOWN}, None),
        ({"call": "cuLaunchKernelEx", "attributes": 1}, None),  # such as the size of a cluster
        ({}, "cuFuncGetParamInfo"),
        ({}, "cuPointerGetAttribute"),
    ],
)
def test_what_the_driver_does_not_tell_is_not_known(driver, way, lacks):
    if lacks:
        delattr(driver, lacks)
    assert Launch(**way).arguments is None


def test_a_launch_with_much_to_ask_about_is_not_known(monkeypatch):
    monkeypatch.setattr(launch_arguments, "_MOST_BYTES", 35)
    assert Launch().arguments is None


@pytest.fixture
def scalars(replay):
    """Observes two launches of kernel `one`, and says what is then known of its scalar arguments."""

    def known(first, second=None, *, kernels=("one",), arrays=ARRAYS, code=b""):
        machine_code.cache_clear()
        launched = iter([first] * 4 + [first, second or first])  # the recording begins with four others

        def edit(event):
            loads = "module" in event
            if code is None and (loads or "meanwhile" in event):
                return None  # and none of its kernels is recorded
            if loads or "kernel" not in event or event["site"] == ENTRY:
                return {**event, "code": code} if loads and code else event
            launch = next(launched)
            return {**event, "event": CALLS[launch.call], "parameters": [*launch.parameters]}

        replay.edit = edit
        replay.drive("versions in turn")
        return machine_code().scalars(kernels, arrays)

    return known


def test_scalars_are_the_same_wherever_the_arrays_lie(scalars):
    here, by = scalars(Launch()), 2**20
    assert here is not None
    moved = [(name, Span(span.start + by, span.stop + by)) for name, span in ARRAYS]
    there = Launch("cuLaunchKernelEx", content(x=X + by, y=Y + by), handle=KERNEL)
    assert scalars(there, arrays=moved) == here
    assert scalars(Launch(), there, arrays=ARRAYS + moved) == here, "on two buffer sets"


@pytest.mark.parametrize(
    "changed", [{"rounds": 8}, {"length": 65}, {"x": X + 8}, {"x": Y, "y": X}, {"y": 0}], ids=str
)
def test_another_number_array_or_place_is_another_call(scalars, changed):
    other = Launch(data=content(**changed))
    assert None not in (scalars(Launch()), scalars(other))
    assert scalars(Launch()) != scalars(other)
    assert scalars(Launch(), other) is None, "on two buffer sets"
    assert scalars(Launch(), other, kernels=("one", "one")) not in (None, scalars(other, kernels=["one"] * 2))


@pytest.mark.parametrize(
    ("launch", "of"),
    [
        (Launch(data=content(x=ELSEWHERE)), {}),  # it may hold the number of rounds
        (Launch(), {"arrays": ARRAYS[:1]}),
        (Launch(handle=UNKNOWN), {}),
        (Launch(), {"kernels": ("one", "two")}),
        (Launch(), {"kernels": ("one", "one", "one")}),
        (Launch(), {"kernels": ("two",)}),
        (Launch(), {"kernels": ()}),
        (Launch(), {"code": b"no cubin, so it may have variables"}),
        (Launch(), {"code": None}),  # loaded before anybody looked
    ],
)
def test_what_a_kernel_may_read_besides_is_not_known(scalars, launch, of):
    assert scalars(launch, **of) is None
