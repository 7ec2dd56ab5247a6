"""The file of the gate's self-test: nothing is lost in it, and a bad one is refused by file and field."""

from __future__ import annotations

import dataclasses
import json

import pytest
from made_up_gate import recording, session
from made_up_selftest import recording as timers_recording

from pytest_gpukern.selftest.gate_recording import (
    GateSession,
    read_gate_recording,
    read_gate_session,
    sparse,
    write_gate_recording,
)
from pytest_gpukern.selftest.recording import RecordingError, write_recording


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "gate.json"
    write_gate_recording(path, recording(6), {"reached": True})
    return path


def changed(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    return file


def test_what_is_read_is_what_was_written(file):
    assert read_gate_recording(file) == recording(6)


def test_a_session_is_a_line_without_what_goes_without_saying(file):
    lines = [line for line in file.read_text().splitlines() if line.startswith('{"default_timer"')]
    assert len(lines) == 6
    assert not any(word in lines[1] for word in ("null", "invalid", "fallback", "[]"))
    full = session(0, problem="lost", faults={"x": "wrong"}, left_out={"y": "none"}, rivals={"z": "no"})
    assert sparse(full)["problem"] == "lost"
    assert sparse(GateSession()) == {}


def test_conclusions_are_written_for_others_and_never_read(file):
    assert json.loads(file.read_text())["conclusions"] == {"reached": True}
    changed(file, lambda data: data.pop("conclusions"))
    assert read_gate_recording(file) == recording(6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("kind"), "kind: is None, so this is no self-test of the gate"),
        (lambda data: data.update(schema=2), "schema: is 2, written by 0.1.0; this reads up to 1. Upgrade"),
        (lambda data: data.update(schema="x"), "schema: is 'x', so this is no self-test"),
        (
            lambda data: data["sessions"][2]["readings"][0].update(case="saxpy"),
            r"sessions\[2\].readings: names 'saxpy', none of its cases",
        ),
        (
            lambda data: data["sessions"][1]["readings"][0].update(low_ns=1e9),
            r"sessions\[1\].readings: has '.*' with a median outside its interval",
        ),
        (lambda data: data["sessions"][0]["readings"][0].pop("median_ns"), r"sessions\[0\].readings\[0\]"),
        (lambda data: data["cases"][0].update(size="many"), r"cases\[0\].size: is 'many' instead of int"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused_with_its_field(file, change, said):
    with pytest.raises(RecordingError, match=f"{file}: {said}"):
        read_gate_recording(changed(file, change))


def test_the_file_of_the_timers_self_test_is_none_of_the_gate_s(tmp_path):
    path = tmp_path / "timers.json"
    write_recording(path, timers_recording(), {})
    with pytest.raises(RecordingError, match="no self-test of the gate"):
        read_gate_recording(path)


def test_a_child_s_file_is_a_session(tmp_path):
    path = tmp_path / "child.json"
    made = dataclasses.replace(session(3), fallback="no CUPTI")
    path.write_text(json.dumps(sparse(made)))
    assert read_gate_session(path) == made
