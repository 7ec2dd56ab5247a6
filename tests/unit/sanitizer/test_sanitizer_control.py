"""Checks whether we believe a tool, and, on the host, that each tool's planted kernel does what it says."""

import sys

import pytest
from recorded_sanitizer import MADE_UP_ADMISSION, log, records, xml

from pytest_gpukern.sanitizer import self_check
from pytest_gpukern.sanitizer.self_check import SOURCE, missed_fault
from pytest_gpukern.sanitizer.tool import Tool
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


@pytest.mark.parametrize("tool", SANITIZERS)
def test_there_is_a_kernel_with_a_fault_for_each_tool(tool):
    assert SOURCE.count(f"void gpukern_{tool}(int *data, int count)") == 1
