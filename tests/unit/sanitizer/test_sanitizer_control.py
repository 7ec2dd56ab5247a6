"""Checks whether we believe a tool, and, on the host, that each tool's planted kernel does what it says."""

import dataclasses
import sys

import pytest
from msgspec import structs
from recorded_sanitizer import MADE_UP_ADMISSION, log, records, xml

from pytest_gpukern.sanitizer import self_check
from pytest_gpukern.sanitizer.self_check import SOURCE, missed_fault, why_not_believed
from pytest_gpukern.sanitizer.tool import Tool
from pytest_gpukern.values.fingerprint import Fingerprint
from pytest_gpukern.values.options import SANITIZERS

PROGRAM = """#!{python}
import os, sys, time
options, command = sys.argv[1:], sys.argv[-5:]
assert command[1:] == ["-P", "-m", "pytest_gpukern.sanitizer.self_check", "memcheck"], command
assert os.environ["GPUKERN_UNDER_SANITIZER"] == "memcheck"
assert os.environ["PYTHONPATH"].split(os.pathsep)[-1] == "/before"
for name, text in (("--save", {xml!r}), ("--log-file", {log!r})):
    open(options[options.index(name) + 1], "w").write(text)
time.sleep({sleep})
sys.exit({status})
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Says why a program that writes these records and this log is not believed."""

    monkeypatch.setenv("PYTHONPATH", "/before")

    def run(*records, log, status=0, sleep=0):
        program = tmp_path / "compute-sanitizer"
        program.write_text(
            PROGRAM.format(python=sys.executable, xml=xml(*records), log=log, status=status, sleep=sleep)
        )
        program.chmod(0o755)
        return missed_fault(Tool(str(program), "1"), "memcheck")

    return run


def test_a_tool_is_believed_that_finds_the_planted_fault(told):
    assert told(*records("memcheck"), log=log(errors=1), status=86) is None


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (log(), 0, "it reports no error"),
        (log(said=MADE_UP_ADMISSION), 0, "memcheck says: Error: made up: this tool does not know the device"),
        ("", 3, "memcheck ended with status 3 without its summary"),
    ],
)
def test_a_tool_that_finds_nothing_is_not_believed_whatever_it_says(told, said, status, reason):
    doubt = told(log=said, status=status)
    assert doubt.startswith(f"memcheck missed the fault that we planted to test it: {reason}")


def test_a_record_that_names_no_kernel_is_not_what_was_planted(told):
    doubt = told(
        "<record><kind>New</kind><what><text>It broke</text></what></record>", log=log(errors=1), status=86
    )
    assert doubt == "memcheck missed the fault that we planted to test it: It broke"


def test_a_tool_that_hangs_is_ended_and_not_believed(told, monkeypatch):
    monkeypatch.setattr(self_check, "_TIMEOUT_S", 0.2)
    assert "was stopped, since it said nothing for too long" in told(log="", sleep=60)


TOOL, MACHINE = Tool("/compute-sanitizer", "2025.3"), Fingerprint(device_uuid="GPU-1", driver_version="580")


@pytest.fixture
def checks(tmp_path, monkeypatch):
    """Asks whether tools are believed, and notes which of them had to find the planted fault for that."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made, outcomes = [], {}

    def missed(program, tool):
        made.append(tool)
        return outcomes.get(tool)

    monkeypatch.setattr(self_check, "missed_fault", missed)

    def asked(program=TOOL, tool="memcheck", machine=MACHINE, *, doubt=None):
        made.clear()
        outcomes[tool] = doubt
        assert why_not_believed(program, tool, machine) == (doubt if made else None)
        return bool(made)

    return asked


def test_a_tool_finds_the_planted_fault_once_for_each_version_driver_and_card(checks, monkeypatch):
    others = [
        {"tool": "racecheck"},
        {"program": dataclasses.replace(TOOL, version="2026.1")},
        {"machine": structs.replace(MACHINE, driver_version="590")},
        {"machine": structs.replace(MACHINE, device_uuid="GPU-2")},
    ]
    for another in [{}, *others]:
        assert [checks(**another), checks(**another)] == [True, False]
    monkeypatch.setattr(self_check, "__version__", "9")
    assert checks()


def test_a_tool_that_missed_the_fault_or_a_card_that_is_not_known_is_checked_in_each_run(checks):
    assert [checks(doubt="it hung"), checks(doubt="it hung"), checks(), checks()] == [True, True, True, False]
    for unknown in ("driver_version", "device_uuid"):
        machine = structs.replace(MACHINE, **{unknown: None})
        assert [checks(machine=machine), checks(machine=machine)] == [True, True]


def test_a_note_that_is_damaged_or_cannot_be_written_is_none(checks, tmp_path, monkeypatch):
    checks()
    (note,) = tmp_path.glob("pytest-gpukern/*")
    note.write_bytes(note.read_bytes()[:-1])
    assert [checks(), checks()] == [True, False]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [checks(), checks()] == [True, True]
    monkeypatch.setattr(self_check, "default_cache_dir", lambda: None)  # of a user without a home folder
    assert [checks(), checks()] == [True, True]


@pytest.mark.parametrize("tool", SANITIZERS)
def test_there_is_a_kernel_with_a_fault_for_each_tool(tool):
    assert SOURCE.count(f"void gpukern_{tool}(int *data, int count)") == 1
