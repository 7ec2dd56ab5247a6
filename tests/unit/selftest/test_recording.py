"""Checks the files of both self-tests: nothing is lost, and a bad one is refused by file and field."""

from __future__ import annotations

import dataclasses
import json

import pytest
from made_up_selftest import gate_recording, gate_session, readings, timer_recording, timer_session

from pytest_gpukern.selftest import timer_results
from pytest_gpukern.selftest.recording import (
    SCHEMA,
    GateRecording,
    GateSession,
    RecordingError,
    TimerRecording,
    TimerSession,
    read_recording,
    read_session,
    write_recording,
    write_session,
)

MADE = {TimerRecording: timer_recording(), GateRecording: gate_recording(6)}


def written(path, kind=TimerRecording, **changes):
    write_recording(path, dataclasses.replace(MADE[kind], **changes))
    return path


def changed(path, *keys, value):
    """Puts a value somewhere into the file, or takes it away where it is `...`."""
    data = json.loads(path.read_text())
    place = data
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("kind", MADE)
def test_what_was_written_is_read_back(tmp_path, kind):
    assert read_recording(written(tmp_path / "new" / "run.json", kind), kind) == MADE[kind]
    again = written(tmp_path / "again.json", kind, sessions=MADE[kind].sessions[:1])
    assert len(read_recording(again, kind).sessions) == 1


def test_conclusions_are_in_the_file_for_others_and_never_read(tmp_path):
    path = tmp_path / "run.json"
    nothing = timer_session(readings=tuple(dataclasses.replace(each, median_ns=0.0) for each in readings()))
    made = timer_recording(nothing, timer_session())
    write_recording(path, made, timer_results.conclude(made))
    stored = json.loads(path.read_text())["conclusions"]
    assert stored["reached"] is False
    assert {row["reached"] for row in stored["walls"]} == {True}
    assert {row["range"] for row in stored["repeats"]} == {None}, "it is not finite"
    changed(path, "conclusions", value={"reached": "of course"})
    assert read_recording(path, TimerRecording) == made


def test_a_session_is_a_line_without_what_goes_without_saying(tmp_path):
    path = written(tmp_path / "gate.json", GateRecording)
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"default_timer"')]
    assert len(lines) == 6
    assert not any(word in lines[1] for word in ("null", "invalid", "fallback", "[]"))


@pytest.mark.parametrize(
    ("keys", "value", "where", "problem"),
    [
        (("sessions", 1, "readings", 0, "median_ns"), "fast", "sessions[1].readings[0].median_ns", "'fast'"),
        (("sessions", 0, "walls", 1, "seconds"), ..., "sessions[0].walls[1].seconds", "is missing"),
        (("sessions", 0, "spins", 2, "typo"), 1.0, "sessions[0].spins[2].typo", "is not a known field"),
        (("sessions",), {}, "sessions", "expected a list"),
        (("sessions",), [], "sessions", "is empty"),
        (("asked_sessions",), True, "asked_sessions", "expected a whole number, found True"),
        (("suites", "exit_status"), None, "suites.exit_status", "expected a whole number, found None"),
        (("schema",), ..., "schema", "not a self-test"),
        (("schema",), True, "schema", "not a self-test"),
        (("schema",), SCHEMA + 1, "schema", "written by 0.1.0; this reads up to"),
        (("kind",), "gate", "kind", "is 'gate', so this is not a self-test of the timers"),
    ],
)
def test_a_damaged_file_is_refused_with_file_and_field(tmp_path, keys, value, where, problem):
    path = written(tmp_path / "run.json")
    changed(path, *keys, value=value)
    with pytest.raises(RecordingError, match=problem) as error:
        read_recording(path, TimerRecording)
    assert error.value.where == where
    assert str(error.value).startswith(f"{path}: {where}: ")


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("kind",), ..., "kind: is None, so this is not a self-test of the gate"),
        (
            ("sessions", 2, "readings", 0, "case"),
            "saxpy",
            r"sessions\[2\].readings: names 'saxpy', not one",
        ),
        (
            ("sessions", 1, "readings", 0, "low_ns"),
            1e9,
            r"sessions\[1\].readings: has '.*' with a median out",
        ),
        (("cases", 0, "size"), "many", r"cases\[0\].size: expected a whole number"),
        (("cases", -1, "base"), "saxpy", r"cases\[\d+\]: has base 'saxpy', not one of its cases"),
        (("cases", -1, "share"), 0.03, r"cases\[\d+\]: has .* a share other than 0.005"),
    ],
)
def test_a_file_that_the_gate_cannot_judge_is_refused_with_its_field(tmp_path, keys, value, said):
    path = written(tmp_path / "gate.json", GateRecording)
    changed(path, *keys, value=value)
    with pytest.raises(RecordingError, match=f"{path}: {said}"):
        read_recording(path, GateRecording)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("{", "is not complete JSON"),
        ("[1]", r"holds \[1\] instead"),
        ('{"a": NaN}', "holds NaN"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path, content, problem):
    file = tmp_path / "run.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RecordingError, match=f"{file}: {problem}"):
        read_recording(file, TimerRecording)


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="name another file with --output"):
        written(tmp_path / "file" / "run.json")


@pytest.mark.parametrize(
    "session",
    [
        TimerSession(problem="no device"),
        timer_session(),
        GateSession(),
        gate_session(3, fallback="no CUPTI", faults={"x": "wrong"}, rivals={"z": "no"}),
    ],
)
def test_a_child_s_file_is_a_session(tmp_path, session):
    write_session(tmp_path / "session.json", session)
    assert read_session(tmp_path / "session.json", type(session)) == session
