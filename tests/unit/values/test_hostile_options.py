"""Options, ini values and variables that nobody can mean: one clear error each, or they mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from mutations import VALUES

from pytest_gpukern.gpu.errors import DeviceError
from pytest_gpukern.gpu.lock import DeviceLock
from pytest_gpukern.gpu.processes import foreign_processes
from pytest_gpukern.gpu.selection import select, visible_devices
from pytest_gpukern.values.options import OPTIONS, SettingsError
from pytest_gpukern.values.settings import Settings

TEXTS = [
    *(value for value in VALUES if isinstance(value, str) and value),
    *(
        "1e400",
        "-1",
        "0",
        "nan",
        "inf",
        "9" * 5000,
        "²",
        "٣",
        "1²",
        "2%",
        "%",
        "--",
        "~",
        "~nobody-of-this-name/x",
    ),
    *(
        "n=",
        "=1",
        "n=1,2,,",
        "n=" + "9" * 5000,
        "n=1e400",
        "n=" + "(" * 5000,
        "n=" + "-" * 5000 + "1",
        "n=[" * 300,
    ),
    *(
        "n=lambda: 1",
        "n=9**9**9",
        "n={1: 2, **x}",
        "n={[]: 1}",
        "n=__import__('os').abort()",
        "n=\0",
        "n=\ud800",
    ),
]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_value_that_cannot_be_meant_is_one_clear_error_or_taken_as_it_is(option):
    for text in TEXTS:
        value = [text] if option.repeatable else text
        for given, ini in (({option.name: value}, {}), ({}, {option.name: value})):
            if option.flag and given:
                continue
            try:
                Settings.from_values(True, given, ini, {}, invocation_dir=Path("/a"), ini_dir=Path("/b"))
            except SettingsError as error:
                message = str(error)
                assert option.cli in message or option.ini in message
                assert len(message) <= 2000
                assert message.replace("\n", "").isprintable()


def test_a_path_with_a_nul_character_or_an_unknown_home_is_refused():
    for text, problem in (("a\0b", "NUL"), ("~nobody-of-this-name/x", "home folder")):
        for name, value in (("baseline-dir", text), ("report", [text])):
            with pytest.raises(SettingsError, match=problem):
                Settings.from_values(False, {name: value}, {}, {})


def check(error, *, begins):
    """An error of ours says what it is about, in lines that a terminal can be sent."""
    assert str(error).startswith(begins)
    assert str(error).replace("\n", "").isprintable()


VARIABLES = [text for text in TEXTS if "\0" not in text and "\ud800" not in text]  # what no variable can hold


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "GPUKERN_FAMILY"])
def test_a_variable_is_one_clear_error_or_taken_as_it_is(variable):
    nvml = FakeNvml()
    first = visible_devices(nvml, {})[0]
    for text in (*VARIABLES, "0,0", "0," * 5000, "1:2:3", f"{'9' * 5000}:x", "-1", ","):
        environ = {variable: text}
        try:
            visible_devices(nvml, environ)
        except DeviceError as error:
            check(error, begins=f"{variable}=")
        foreign_processes(nvml, first, environ)


@pytest.mark.parametrize("text", ["relative", "../up", "~/locks", "\x1b[2J"])
def test_a_folder_of_locks_that_depends_on_who_looks_is_refused(text, monkeypatch):
    monkeypatch.setenv("GPUKERN_LOCK_DIR", text)
    with pytest.raises(DeviceError, match=r"GPUKERN_LOCK_DIR=.*is not an absolute path") as caught:
        DeviceLock("GPU-1")
    assert str(caught.value).isprintable()


def test_a_device_that_cannot_be_meant_is_refused():
    devices = visible_devices(FakeNvml(), {})
    for text in (*TEXTS, "GPU-", "MIG-"):
        try:
            select(text, devices)
        except DeviceError as error:
            check(error, begins="--gpukern-device=")
